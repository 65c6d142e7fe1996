"""B9: bodies of 64 MiB out of memory, one client. CPU for each GiB in rounds, capped, and the CPU that a server uses while its
client has asked and does not read. Ours is `bulk` (ci/bench/micro); the floor and the peers are `bulk_*` in ci/bench/peers."""
import socket, time

import b3, chart, micro, rounds, servers

BODY, MAX_RATIO, MAX_BLOCKED = 64 << 20, 1.05, .001
OWN = "bulk"
PROGRAMS = {"tokio_ct": "bulk_tokio", "monoio_epoll": "bulk_monoio", "smol": "bulk_smol"}


def command(name):
    if name == OWN: return f"{micro.TARGET}/release/bulk --addr {{addr}} --reactors 1"
    return f"{servers.PEERS_TARGET}/release/{PROGRAMS.get(name, 'bulk_epoll')} {{addr}}"


def body_of(port):
    """The whole answer: every server must send the same."""
    with socket.create_connection(("127.0.0.1", port), 20) as s:
        s.sendall(rounds.REQUEST)
        got, end = bytearray(), None
        while end is None or len(got) < end:
            part = s.recv(1 << 20)
            if not part: raise SystemExit("the server has closed the connection in the middle of a body")
            got += part
            if end is None and b"\r\n\r\n" in got: end = got.index(b"\r\n\r\n") + 4 + BODY
        return bytes(got)


def fetch(port, connections, bodies):
    """So many bodies, one after the other, on each connection; how many they were."""
    into = memoryview(bytearray(1 << 20))
    for _ in range(connections):
        with socket.create_connection(("127.0.0.1", port), 20) as s:
            for _ in range(bodies):
                s.sendall(rounds.REQUEST)
                left = fetch.length
                while left > 0:
                    n = s.recv_into(into[:min(left, len(into))])
                    if not n: raise SystemExit("the server has closed the connection in the middle of a body")
                    left -= n
    return connections * bodies


def cpu(name, bodies):
    """Milliseconds of CPU for a GiB."""
    with rounds.Server(command(name), cap=True) as server:
        fetch(server.port, 1, 1)
        begun = server.cpu()
        fetch(server.port, 1, bodies)
        return (server.cpu() - begun) / 1e6 / (bodies * BODY / (1 << 30))


def blocked(name, seconds):
    """Share of a CPU while the client does not read."""
    with rounds.Server(command(name)) as server, server.connect() as s:
        s.sendall(rounds.REQUEST)
        time.sleep(.5)
        cpu, begun = server.cpu(), time.monotonic()
        time.sleep(seconds)
        used = (server.cpu() - cpu) / 1e9 / (time.monotonic() - begun)
        rounds.take(s, fetch.length)  # and then it goes on
        return used


def run(options, report):
    if why := rounds.unable():
        print(f"B9: SKIPPED, {why}"); return None
    micro.build(); servers.build_peers()
    names = [servers.FLOOR, OWN] + ([] if options.smoke else [n for n in rounds.peers(options) if n in PROGRAMS])
    first = None
    for name in names:
        with rounds.Server(command(name)) as server: got = body_of(server.port)
        if first is None: first, fetch.length = got, len(got)
        if got != first: raise SystemExit(f"{name} sends another body than the floor: not comparable")
    number, bodies = (1, 2) if options.smoke else (options.rounds, 4 * options.seconds)
    print(f"{bodies} bodies of 64 MiB, {number} rounds, " + rounds.cap_said(), flush=True)
    with rounds.Load():
        seen = rounds.in_turn(names + [rounds.AGAIN], number, lambda name: cpu(name, bodies))
        still = report["blocked"] = {name: blocked(name, 1 if options.smoke else 3) for name in names}
    values = report["cpu"] = rounds.against_floor(seen)
    calls = report["syscalls_per_body"] = {}
    try:
        b3.check_strace()
        for name in names:
            (r1, c1, _), (r2, c2, _) = (b3.one_run(command(name), 1, n, fetch) for n in (2, 6))
            calls[name] = {kind: max(0.0, (b3.total(c2, of) - b3.total(c1, of)) / (r2 - r1)) for kind, of in b3.KINDS.items()}
    except b3.Untraceable as why: print(f"syscalls: not measured, strace may not trace here: {why}")
    print(f"{'server':14} {'ms/GiB':>8} {'x floor':>8} {'':9} {'blocked':>8}   syscalls for a body")
    for name, v in values.items():
        print(f"{name:14} {v['value']:8.1f} {v['ratio']:8.3f} +- {v['spread']:.3f} " + (f"{still[name]:8.3%}" if name in still else " " * 8) + "   "
              + "  ".join(f"{k} {n:.0f}" for k, n in calls.get(name, {}).items() if n >= .5), flush=True)
    chart.bars(servers.OUT / "B9.svg", "B9: CPU for a GiB in bodies of 64 MiB (less is better)", "ms", [(n, [("ms", v["value"])]) for n, v in values.items()], digits=0)
    verdicts = [rounds.judge("CPU per byte", values, OWN, MAX_RATIO),
                ("PASS" if still[OWN] <= MAX_BLOCKED else "FAIL", f"{OWN}: {still[OWN]:.3%} of a CPU while the client does not read, target 0 %, i.e. <= {MAX_BLOCKED:.1%}")]
    report["overview"] = [{"what": "CPU per byte, 64 MiB bodies, x floor", "value": values[OWN]["ratio"], "target": MAX_RATIO, "floor": 1.0, "verdict": verdicts[0][0],
                           "peer": min((v["ratio"] for n, v in values.items() if n in PROGRAMS), default=None)}]
    return verdicts
