"""B12: TLS 1.3 with one suite for all (TLS_AES_128_GCM_SHA256): sample `tls` beside tokio-boring, the same BoringSSL, and
tokio-rustls (ring), each on one core. User-space instructions per keep-alive GET, per MiB of bulk and per handshake
(callgrind, two counts subtracted), then CPU per request and per MiB in rounds A B B A (peers/ab.py), and CPU per handshake."""
import os, re, shutil, signal, socket, statistics, subprocess, tempfile, time

import b1, chart, micro, servers

SUITE = "TLS_AES_128_GCM_SHA256"
PEERS = servers.ROOT / "ci/bench/tls-peers"
RIVALS = ["tokio_boring", "tokio_rustls"]
AGAIN = "tls_again"  # the same program: what this machine calls equal
BULK = 1 << 20
# The target: CPU at most so much of each rival's.
LIMITS = {"tokio_boring": 0.95, "tokio_rustls": 1.0}
# Noise above which rounds prove nothing.
MAX_NOISE = 0.03
REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


def build():
    env, built = dict(os.environ), servers.ROOT / "target/boringssl"
    if "BORING_BSSL_PATH" not in env and (built / "version").is_file():  # as ci/lib.sh does
        env |= {"BORING_BSSL_PATH": str(built), "BORING_BSSL_ASSUME_PATCHED": "1"}
    if "BORING_BSSL_PATH" not in env: raise SystemExit("B12: BoringSSL is not built: run ci/setup")
    servers.build(["tls"], "tls", env)
    subprocess.run(["cargo", "build", "--release", "--locked", "--bins", "--manifest-path", str(PEERS / "Cargo.toml"),
                    "--target-dir", str(servers.PEERS_TARGET)], cwd=servers.ROOT, check=True, env=env)


def command(name, certs, body=None):
    if name in ("tls", AGAIN):
        return f"{servers.sample('tls')} --certs {certs} --addr {{addr}} --reactors 1 --body {body or 'bench'}"
    set_body = f"env PEER_BODY={body} " if body else ""
    return f"{set_body}{servers.PEERS_TARGET}/release/{name} {certs} {{addr}}"


def client(certs):
    """What every session here is made with: one suite, no tickets offered. OpenSSL reads the suite from OPENSSL_CONF."""
    import ssl
    context = ssl.create_default_context(cafile=f"{certs}/ca.pem")
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def session(context, port):
    plain = socket.create_connection(("127.0.0.1", port), 120)
    # Else the request waits 40 ms for the acknowledgement of the handshake's last message (Nagle, delayed ACK).
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    s = context.wrap_socket(plain, server_hostname="localhost")
    if s.cipher()[0] != SUITE: raise SystemExit(f"B12: {s.cipher()[0]} was agreed on, not {SUITE}: not comparable")
    return s


def ask(s):
    """One request; the bytes of its answer."""
    s.sendall(REQUEST)
    got = s.recv(1 << 16)
    while b"\r\n\r\n" not in got: got += s.recv(1 << 16)
    head, _, body = got.partition(b"\r\n\r\n")
    left = int(re.search(rb"(?i)content-length: (\d+)", head)[1]) - len(body)
    n = len(got) + left
    while left > 0:
        part = s.recv(1 << 16)
        if not part: raise SystemExit("B12: a server closed in the middle of an answer")
        left -= len(part)
    return n


def requests(context, port, n):
    """So many on eight connections."""
    sessions = [session(context, port) for _ in range(8)]
    for i in range(n): ask(sessions[i % 8])
    for s in sessions: s.close()


def handshakes(context, port, n):
    for _ in range(n):
        s = session(context, port)
        ask(s)
        s.close()


class Server:
    """A running server; `with` ends it."""
    def __init__(self, line, *before):
        self.port = servers.free_port()
        line = [*before, *line.replace("{addr}", f"127.0.0.1:{self.port}").split()]
        self.p = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for _ in range(600):
            try: socket.create_connection(("127.0.0.1", self.port), 1).close(); return
            except OSError: time.sleep(.05)
        self.p.kill()
        raise SystemExit(f"B12: `{' '.join(line)}` does not listen")

    def __enter__(self): return self

    def __exit__(self, *_):
        self.p.send_signal(signal.SIGTERM)
        try: self.said = self.p.communicate(timeout=60)[1]
        finally:
            if self.p.poll() is None: self.p.kill()

    def cpu(self):
        fields = open(f"/proc/{self.p.pid}/stat").read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def collected(line, work, context, n):
    with Server(line, "valgrind", "--trace-children=yes", "--tool=callgrind", "--callgrind-out-file=/dev/null") as server:
        work(context, server.port, n)
        time.sleep(.3)  # the server sees the last FINs
    found = re.findall(r"Collected : (\d+)", server.said)
    if len(found) != 1: raise SystemExit(f"B12: callgrind says {found} of `{line}`:\n{server.said[-2000:]}")
    return int(found[0])


def instructions(certs, context, options, report):
    if not micro.has_valgrind(): return
    few, many = (16, 48) if options.smoke else (400, 1600)
    kinds = {"GET": (None, requests, few, many), "MiB": (BULK, requests, 8, 16 if options.smoke else 40),
             "handshake": (None, handshakes, 4, 12 if options.smoke else 40)}
    print(f"user-space instructions, {SUITE}")
    print(f"{'server':14} " + " ".join(f"{k:>12}" for k in kinds), flush=True)
    rows = report["instructions"] = {}
    for name in ["tls"] + ([] if options.smoke else RIVALS):
        rows[name] = {}
        for kind, (body, work, low, high) in kinds.items():
            line = command(name, certs, body)
            rows[name][kind] = (collected(line, work, context, high) - collected(line, work, context, low)) / (high - low)
        print(f"{name:14} " + " ".join(f"{v:12.0f}" for v in rows[name].values()), flush=True)
    for kind in kinds:
        chart.bars(servers.OUT / f"B12-{kind}.svg", f"B12: user-space instructions per {kind} over TLS 1.3 (fewer is better)", "",
                   [(n, [("instructions", row[kind])]) for n, row in rows.items()], digits=0)


def cpu(certs, options, report):
    if not shutil.which("wrk") or not shutil.which("taskset") or len(os.sched_getaffinity(0)) < 2:
        print("CPU: wrk, taskset or a second CPU is missing, not measured"); return
    names = ["tls", *RIVALS, AGAIN]
    report["cpu"] = {}
    for kind, body, connections in (("GET", None, options.connections), ("MiB", BULK, 4)):
        print(f"\nCPU per {kind}, {connections} connections, {options.rounds} rounds of {options.seconds} s", flush=True)
        specs = [f"{n}={command(n, certs, body)}" for n in names]
        _, seen = b1.tool("ab.py", ["-r", str(options.rounds), "-d", str(options.seconds), "-c", str(connections),
                                    "--cap", "0", "--scheme", "https"] + specs)
        report["cpu"][kind] = ratios({n: [row[1] for row in rows] for n, rows in seen["res"].items()})


def ratios(rounds):
    """Ours to each, pair by pair, and how far the same program is from itself."""
    own, again = rounds["tls"], rounds[AGAIN]
    to = lambda other: [a / b for a, b in zip(own, other)]
    return {"cpu_us": {n: statistics.median(v) for n, v in rounds.items()},
            "ours_to": {n: statistics.median(to(rounds[n])) for n in RIVALS},
            "noise": (max(to(again)) - min(to(again))) / 2, "rounds": rounds}


def handshake_cpu(certs, context, options, report):
    """The client is slower than any of the servers: only the server's CPU counts."""
    n = 300
    rounds = {name: [] for name in ["tls", *RIVALS, AGAIN]}
    for r in range(options.rounds):
        for name in list(rounds) if r % 2 == 0 else list(rounds)[::-1]:
            with Server(command(name, certs)) as server:
                handshakes(context, server.port, 20)
                before = server.cpu()
                handshakes(context, server.port, n)
                rounds[name].append((server.cpu() - before) / n * 1e6)
    report.setdefault("cpu", {})["handshake"] = found = ratios(rounds)
    print(f"\nCPU per full handshake with one request, {options.rounds} rounds of {n}")
    for name, us in found["cpu_us"].items(): print(f"{name:14} {us:8.0f} us")


def judge(report):
    verdicts = []
    for kind in ("GET", "MiB", "handshake"):
        if rows := report.get("instructions"):
            for rival in RIVALS if len(rows) > 1 else []:
                own, theirs = rows["tls"][kind], rows[rival][kind]
                verdicts.append(("PASS" if own <= theirs else "FAIL", f"instructions per {kind}: {own:.0f}, {rival} {theirs:.0f} ({own / theirs:.2f} x)"))
        if (found := report.get("cpu", {}).get(kind)) and kind != "handshake":
            for rival, limit in LIMITS.items():
                ratio, noise = found["ours_to"][rival], found["noise"]
                sure = noise <= MAX_NOISE or abs(ratio - limit) > 2 * noise
                verdict = "INCONCLUSIVE" if not sure else "PASS" if ratio <= limit else "FAIL"
                verdicts.append((verdict, f"CPU per {kind}: {ratio:.3f} x {rival}, target <= {limit}; against itself +- {noise:.3f}"))
        elif found:
            ours_to = ", ".join(f"{ratio:.3f} x {rival}" for rival, ratio in found["ours_to"].items())
            verdicts.append(("REPORTED", f"CPU per handshake: {ours_to}; against itself +- {found['noise']:.3f}"))
    if not verdicts and report.get("instructions"): verdicts.append(("PASS", "the tools and the sample still work"))
    return verdicts


def run(options, report):
    build()
    with tempfile.TemporaryDirectory() as certs:
        subprocess.run(["bash", str(servers.ROOT / "ci/certs"), certs], check=True, stdout=subprocess.DEVNULL)
        # wrk's OpenSSL reads it as well as Python's.
        conf = f"{certs}/openssl.cnf"
        with open(conf, "w") as f:
            f.write(f"openssl_conf = main\n[main]\nssl_conf = ssl\n[ssl]\nsystem_default = all\n[all]\nCiphersuites = {SUITE}\nMinProtocol = TLSv1.3\n")
        os.environ["OPENSSL_CONF"] = conf
        context = client(certs)
        instructions(certs, context, options, report)
        if not options.smoke:
            cpu(certs, options, report)
            handshake_cpu(certs, context, options, report)
    return judge(report)
