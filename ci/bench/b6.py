"""B6: 10 000 connections that have had one request each and are idle. Memory for each (VmRSS 2 s after the last answer less
VmRSS before), and the CPU that the server uses while nothing happens."""
import statistics, time

import chart, rounds, servers

CONNECTIONS, SMOKE = 10_000, 500
BATCH = 100  # at a time: all must be there before the first is idle for too long
MAX_BYTES = 1024
MAX_IDLE = .005  # 0 %, in whole percents: every connection is looked at four times a second
QUIET, IDLE = 2, 3  # seconds


def measure(name, connections):
    """(bytes of a connection, share of a CPU when idle)"""
    with rounds.Server(rounds.command(name)) as server:
        length = rounds.answer_length(server.port)
        time.sleep(.3)
        before, clients = server.resident(), []
        for _ in range(connections // BATCH):
            # One source address will do: every server has a port of its own, and a client's port is taken only towards that.
            batch = [server.connect() for _ in range(BATCH)]
            for s in batch: s.sendall(rounds.REQUEST)
            for s in batch: rounds.take(s, length)
            clients += batch
        time.sleep(QUIET)
        after, cpu, begun = server.resident(), server.cpu(), time.monotonic()
        time.sleep(IDLE)
        idle = (server.cpu() - cpu) / 1e9 / (time.monotonic() - begun)
        if (held := server.descriptors()) < connections: raise SystemExit(f"{name} holds {held} descriptors, {connections} connections were opened: is the machine so slow that some were idle for too long?")
        for s in clients: s.close()
    return (after - before) / connections, idle


def run(options, report):
    connections, number = (SMOKE, 1) if options.smoke else (CONNECTIONS, 2)
    if why := rounds.unable() or rounds.descriptors(connections + 200):
        print(f"B6: SKIPPED, {why}"); return None
    servers.build_own(); servers.build_peers()
    names = [servers.FLOOR, "raw"] + ([] if options.smoke else ["pipe"] + rounds.peers(options))
    servers.same_answers(names)
    print(f"{connections} idle connections; {number} rounds", flush=True)
    with rounds.Load(): seen = rounds.in_turn(names + ([] if options.smoke else [rounds.AGAIN]), number, lambda name: measure(name, connections))
    values = report["values"] = {}
    print(f"{'server':14} {'bytes each':>11} {'spread':>7} {'CPU when idle':>14}")
    for name, rows in seen.items():
        sizes = [r[0] for r in rows]
        values[name] = {"bytes": statistics.median(sizes), "spread": (max(sizes) - min(sizes)) / 2, "idle": max(r[1] for r in rows)}
        print(f"{name:14} {values[name]['bytes']:11.0f} {values[name]['spread']:7.0f} {values[name]['idle']:14.3%}", flush=True)
    report["connections"] = connections
    chart.bars(servers.OUT / "B6.svg", f"B6: bytes of memory for an idle connection, of {connections} (fewer is better)", "",
               [(n, [("bytes", v["bytes"])]) for n, v in values.items() if n != rounds.AGAIN], digits=0)
    own = values["raw"]
    # A short run is mostly what the start left behind.
    verdicts = [] if options.smoke else [("PASS" if own["bytes"] <= MAX_BYTES else "FAIL", f"raw: {own['bytes']:.0f} bytes for an idle connection, target <= {MAX_BYTES}")]
    verdicts.append(("PASS" if own["idle"] < MAX_IDLE else "FAIL", f"raw: {own['idle']:.3%} of a CPU when idle, target 0 %, i.e. < {MAX_IDLE:.1%}"))
    rivals = {n: v["bytes"] for n, v in values.items() if n not in ("raw", "pipe", servers.FLOOR, rounds.AGAIN)}
    if rivals:
        least = min(rivals, key=rivals.get)
        verdicts.append(("PASS" if own["bytes"] < rivals[least] else "FAIL", f"raw: {own['bytes']:.0f} bytes against the smallest peer, {least} with {rivals[least]:.0f}"))
    report["overview"] = [{"what": "bytes for an idle connection", "value": own["bytes"], "target": MAX_BYTES, "floor": values[servers.FLOOR]["bytes"],
                           "peer": min(rivals.values(), default=None)}]
    return verdicts
