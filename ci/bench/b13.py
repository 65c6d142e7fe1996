"""B13: kernel TLS. CPU for each GiB out of the samples `ktls_tx` and `tls` (the same server, encrypting in the kernel and here),
in rounds, capped, where this kernel has TLS. Whether what kernel TLS does is right, `send_file` over it too, is what ci/ktls
checks, in a virtual machine that has it."""
import pathlib, ssl, socket, subprocess

import chart, rounds, servers

BODY = 8 << 20
CERTS = servers.ROOT / "target/certs"
ULP = pathlib.Path("/proc/sys/net/ipv4/tcp_available_ulp")


def without():
    """Why this kernel cannot: asked in the way that matters, by a socket."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as s:
        try: s.setsockopt(socket.IPPROTO_TCP, 31, b"tls")  # TCP_ULP
        except OSError as error:
            listed = ULP.read_text().split() if ULP.exists() else []
            return f"this kernel has no TLS (TCP_ULP \"tls\": {error.strerror}; tcp_available_ulp: {' '.join(listed) or 'none'}; modprobe tls)"


def command(name): return f"{servers.sample(name)} --addr {{addr}} --reactors 1 --body {BODY} --certs {CERTS}"


def fetch(port, bodies):
    context = ssl.create_default_context(cafile=str(CERTS / "ca.pem"))
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    into = bytearray(1 << 16)
    with context.wrap_socket(socket.create_connection(("127.0.0.1", port), 20), server_hostname="localhost") as s:
        for _ in range(bodies):
            s.sendall(rounds.REQUEST)
            got, end = 0, None
            while end is None or got < end:
                if not (n := s.recv_into(into)): raise SystemExit("the server has closed the connection in the middle of a body")
                if end is None: end = bytes(into[:n]).index(b"\r\n\r\n") + 4 + BODY
                got += n


def cpu(name, bodies):
    """Milliseconds of CPU for a GiB."""
    with rounds.Server(command(name), cap=True) as server:
        fetch(server.port, 1)
        begun = server.cpu()
        fetch(server.port, bodies)
        return (server.cpu() - begun) / 1e6 / (bodies * BODY / (1 << 30))


def run(options, report):
    if why := without() or rounds.unable():
        print(f"B13: SKIPPED, {why}. That it is correct is checked by ci/ktls, in a virtual machine.")
        return None
    subprocess.run([str(servers.ROOT / "ci/certs")], cwd=servers.ROOT, check=True)
    servers.build(["tls", "ktls_tx"], "tls")
    number, bodies = (1, 2) if options.smoke else (options.rounds, 16 * options.seconds)
    with rounds.Load(): seen = rounds.in_turn(["tls", "ktls_tx", "tls_again"], number, lambda name: cpu(name.removesuffix("_again"), bodies))
    values = report["cpu"] = rounds.against(seen, "tls")
    print(f"{bodies} bodies of 8 MiB, {number} rounds\n{'server':14} {'ms/GiB':>8} {'x tls':>8}")
    for name, v in values.items(): print(f"{name:14} {v['value']:8.1f} {v['ratio']:8.3f} +- {v['spread']:.3f}", flush=True)
    chart.bars(servers.OUT / "B13.svg", "B13: CPU for a GiB over TLS 1.3 (less is better)", "ms", [(n, [("ms", v["value"])]) for n, v in values.items()], digits=0)
    ratio, noise = values["ktls_tx"]["ratio"], values["tls_again"]["spread"]
    word = "INCONCLUSIVE" if noise > abs(1 - ratio) else "PASS" if ratio < 1 else "FAIL"
    report["overview"] = [{"what": "CPU per byte by kernel TLS, x user-space TLS", "value": ratio, "target": 1.0, "verdict": word}]
    return [(word, f"ktls_tx: {ratio:.3f} x the CPU per byte of tls, target < 1; tls against itself +- {noise:.3f}")]
