"""B3: which syscalls a keep-alive request costs. The server runs under `strace -f -c` and answers a fixed number
of requests, twice with different counts: the difference is the steady state, without start and stop.
The server's own counters must agree with strace."""
import os, pathlib, re, shutil, signal, socket, subprocess, tempfile, time

import chart, servers

REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
# Kind -> the syscalls it covers. recv(2) is recvfrom, send(2) is sendto to the kernel.
KINDS = {"recv": ["recvfrom", "recvmsg", "read", "readv"], "send": ["sendto", "sendmsg", "writev"],
         "epoll_wait": ["epoll_wait", "epoll_pwait", "epoll_pwait2"], "epoll_ctl": ["epoll_ctl"],
         "futex": ["futex"], "write": ["write"]}
# A counter of ours -> the kind it must equal. Names as raw prints them when it stops.
COUNTERS = {"reads": ["recvfrom", "recvmsg"], "sends": ["sendto", "sendmsg", "writev"],
            "passes": ["epoll_wait", "epoll_pwait", "epoll_pwait2"]}
AGREE = 0.001
# Calls that start and stop cost on one side only: the last wait, a signal's interruption.
SLACK = 2
# Steady state: at most this many calls per request. "none" leaves room for a stray call in thousands of requests, and for
# what start and stop cost more in one of the two runs: raw's threads then meet in 11 to 19 futex calls.
NONE, STRAY = 0.0005, 12
LIMITS = {"recv": 1.01, "send": 1.01, "epoll_wait": 1.0, "epoll_ctl": NONE, "futex": NONE, "write": NONE}


class Untraceable(Exception):
    """strace is not allowed to trace here: nothing can be said."""


def check_strace():
    if not shutil.which("strace"): raise SystemExit("B3: strace is missing (ci/setup)")
    probe = subprocess.run(["strace", "-f", "-c", "-o", os.devnull, "true"], capture_output=True, text=True)
    if probe.returncode: raise Untraceable(probe.stderr.strip().split("\n")[0])


def tracee(strace):
    """The process that strace started: its one child."""
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try: parent = entry.joinpath("stat").read_text().rsplit(")", 1)[1].split()[1]
            except OSError: continue
            if int(parent) == strace: return int(entry.name)
    raise SystemExit("B3: strace has no child: did the server start?")


def drive(port, connections, each):
    """`each` requests on every connection, kept busy side by side; the number of answers."""
    answers = 0
    clients = [socket.create_connection(("127.0.0.1", port), 20) for _ in range(connections)]
    try:
        for _ in range(each):
            for c in clients: c.sendall(REQUEST)
            for c in clients:
                got = b""
                while True:
                    part = c.recv(65536)
                    if not part: raise SystemExit("B3: the server closed a connection early")
                    got += part
                    head, _, body = got.partition(b"\r\n\r\n")
                    length = re.search(rb"(?i)content-length: (\d+)", head)
                    if length and len(body) >= int(length.group(1)): break
                answers += 1
    finally:
        for c in clients: c.close()
    return answers


def traced(command, connections, each, load=None, how=("-c", "-U", "calls,errors,name")):
    """(requests answered, what strace wrote, the server's counters by name). `load`: what to do in place of `drive`."""
    port = servers.free_port()
    with tempfile.NamedTemporaryFile("r", suffix=".strace") as log, tempfile.TemporaryFile("w+") as printed:
        p = subprocess.Popen(["strace", "-f", *how, "-o", log.name]
                             + command.replace("{addr}", f"127.0.0.1:{port}").split(),
                             stdin=subprocess.DEVNULL, stdout=printed, stderr=printed)
        server = None
        try:
            for _ in range(600):  # 30 s: strace makes the start slow
                if p.poll() is not None: break
                try: socket.create_connection(("127.0.0.1", port), 1).close(); break
                except OSError: time.sleep(.05)
            if p.poll() is not None:
                printed.seek(0)
                raise SystemExit(f"B3: `{command}` ended before it listened (port {port}):\n{printed.read()[-2000:]}")
            server = tracee(p.pid)
            requests = (load or drive)(port, connections, each)
            time.sleep(.3)  # the server sees the last FINs
            os.kill(server, signal.SIGINT)
            p.wait(20)
        finally:
            if p.poll() is None:
                if server: os.kill(server, signal.SIGKILL)
                else: p.kill()
                p.wait()
        printed.seek(0)
        counters = {n: int(v) for n, v in re.findall(r"^\s*([a-z_]+)\s+(\d+)\s*$", printed.read(), re.M)}
        return requests, log.read(), counters


def one_run(command, connections, each, load=None):
    """(requests answered, strace's calls by name, the server's counters by name)."""
    requests, summary, counters = traced(command, connections, each, load)
    calls = {m[2]: (int(m[0]), int(m[1] or 0)) for m in
             re.findall(r"^\s*(\d+)[ \t]+(?:(\d+)[ \t]+)?([a-z]\w*)\s*$", summary, re.M) if m[2] != "total"}
    return requests, calls, counters


def none(per_request, requests):
    """Is this none at all, stray calls aside?"""
    return per_request * requests <= max(STRAY, NONE * requests) + 1e-6


def total(calls, names): return sum(calls.get(n, (0, 0))[0] for n in names)


def census(name, options):
    """Per-request figures of one server, from two runs."""
    few, many = max(1, options.requests // 4), options.requests
    r1, c1, _ = one_run(servers.command(name), options.connections, few)
    r2, c2, counters = one_run(servers.command(name), options.connections, many)
    known = {n for names in KINDS.values() for n in names}
    per = {kind: (total(c2, names) - total(c1, names)) / (r2 - r1) for kind, names in KINDS.items()}
    per["other"] = (total(c2, set(c2) - known) - total(c1, set(c1) - known)) / (r2 - r1)
    # Below zero only by chance (a wait more in the short run).
    per = {k: max(v, 0.0) for k, v in per.items()}
    errors = (sum(c2.get(n, (0, 0))[1] for n in KINDS["recv"]) - sum(c1.get(n, (0, 0))[1] for n in KINDS["recv"])) / (r2 - r1)
    return {"requests": r2, "counted": r2 - r1, "per_request": per, "recv_errors_per_request": max(errors, 0.0),
            "calls": {k: v[0] for k, v in sorted(c2.items())}, "counters": counters}


def compare(own):
    """Our counters against strace, over the whole run: one verdict for each."""
    verdicts, calls, counters = [], own["calls"], own["counters"]
    for counter, names in COUNTERS.items():
        traced = sum(calls.get(n, 0) for n in names)
        if counter not in counters:
            verdicts.append(("FAIL", f"counter {counter}: raw did not print it")); continue
        gap = abs(counters[counter] - traced)
        ok = traced > 0 and gap <= max(SLACK, AGREE * traced)
        verdicts.append(("PASS" if ok else "FAIL", f"counter {counter} {counters[counter]}, strace {traced} (may differ by {max(SLACK, AGREE * traced):.0f})"))
    accepted = counters.get("accepted")
    # The probe of the port is a connection too.
    verdicts.append(("PASS" if accepted == own["connections"] + 1 else "FAIL", f"counter accepted {accepted}, connections made {own['connections'] + 1}"))
    return verdicts


def eventfd_writes():
    """A short run by itself, whose strace names what is written to: the lines that raw prints are no wakes. To the last one."""
    for _ in range(10):  # until one has wakes at all: a reactor that is awake at the stop needs none
        _, log, counters = traced(servers.command("raw"), 4, 4, how=("-y", "-e", "trace=write"))
        seen, counted = len(re.findall(r"\bwrite\(\d+<anon_inode:\[?eventfd\b", log)), counters.get("eventfd_writes")
        if seen or counted != 0: break
    word = "INCONCLUSIVE" if seen == counted == 0 else "PASS" if seen == counted else "FAIL"
    return word, f"counter eventfd_writes {counted}, strace {seen}, in a run by itself"


def run(options, report):
    try: check_strace()
    except Untraceable as why:
        print(f"B3: SKIPPED, strace may not trace here: {why}")
        return None
    if options.smoke: options.requests, options.connections = min(options.requests, 200), min(options.connections, 16)
    servers.build_own()
    names = ["raw"]
    if not options.smoke:
        servers.build_peers()
        # io_uring peers hand their work over in shared memory: a census of syscalls would flatter them.
        peers = options.peers if options.peers is not None else [n for n in servers.PROGRAMS if n not in servers.URING | {servers.FLOOR}]
        names += [servers.FLOOR] + peers
    print(f"\nsyscalls per request, {options.connections} connections, {options.requests} requests on each")
    print(f"{'server':14} " + " ".join(f"{k:>10}" for k in list(KINDS) + ["other"]) + f" {'recv errors':>12}")
    rows = report["servers"] = {}
    for name in names:
        row = rows[name] = census(name, options)
        row["connections"] = options.connections
        print(f"{name:14} " + " ".join(f"{v:10.4f}" for v in row["per_request"].values()) + f" {row['recv_errors_per_request']:12.4f}", flush=True)
    own = rows["raw"]
    print("\nraw's own counters: " + ", ".join(f"{k} {v}" for k, v in own["counters"].items()))
    chart.bars(servers.OUT / "B3.svg", f"B3: syscalls per keep-alive request, {options.connections} connections", "",
               [(n, list(r["per_request"].items())) for n, r in rows.items()])
    verdicts = []
    for kind, limit in LIMITS.items():
        value, requests = own["per_request"][kind], own["counted"]
        if limit == NONE: ok = none(value, requests)
        else: ok = value < limit + SLACK / requests if kind == "epoll_wait" else value <= limit
        target = f"< {limit}" if kind == "epoll_wait" else f"<= {limit}" if limit > NONE else f"0, i.e. <= {limit} or {STRAY} calls"
        verdicts.append(("PASS" if ok else "FAIL", f"raw: {value:.4f} {kind} per request ({value * requests:.0f} calls), target {target}"))
    return verdicts + compare(own) + [eventfd_writes()]
