"""B7: connect, one request, close by the client; 32 at a time. CPU per connection in rounds, capped, the server's part of the
end included; syscalls and instructions for each."""
import shutil, socket

import b3, chart, micro, rounds, servers

BATCH, MAX_RATIO = 32, 1.10
# Fewer than the ports of a source address: every measurement has a new server's port.
EACH_SECOND, MOST = 4_000, 20_000
SHOWN = {"accept": ["accept", "accept4"], "recv": b3.KINDS["recv"], "send": b3.KINDS["send"], "close": ["close"], "shutdown": ["shutdown"],
         "epoll_wait": b3.KINDS["epoll_wait"], "epoll_ctl": ["epoll_ctl"], "setsockopt": ["setsockopt"], "futex": ["futex"], "write": ["write"]}


def churn(port, batch, each):
    """`each` times a batch of clients; the number of connections."""
    length = rounds.answer_length(port)
    for _ in range(each):
        clients = [socket.create_connection(("127.0.0.1", port), 20) for _ in range(batch)]
        for c in clients: c.sendall(rounds.REQUEST)
        for c in clients:
            rounds.take(c, length)
            c.close()
    return batch * each


def cpu(name, connections):
    """Microseconds of CPU for a connection."""
    with rounds.Server(rounds.command(name), cap=True) as server:
        churn(server.port, BATCH, 4)
        before, begun = server.settled(), server.cpu()
        churn(server.port, BATCH, connections // BATCH)
        if (kept := server.settled() - before) > 0: raise SystemExit(f"{name} keeps {kept} connections that have ended")
        return (server.cpu() - begun) / 1e3 / (connections // BATCH * BATCH)


def syscalls(names, options, report):
    try: b3.check_strace()
    except b3.Untraceable as why:
        print(f"syscalls: not measured, strace may not trace here: {why}"); return
    each, found = 8 if options.smoke else 30, report.setdefault("syscalls_per_connection", {})
    print(f"syscalls per connection\n{'server':14} " + " ".join(f"{k:>10}" for k in [*SHOWN, "other", "all"]), flush=True)
    known = {call for calls in SHOWN.values() for call in calls}
    for name in names:
        if name in servers.URING: continue
        (r1, c1, _), (r2, c2, _) = (b3.one_run(rounds.command(name), BATCH, n, churn) for n in (each, 4 * each))
        per = lambda calls: max(0.0, (b3.total(c2, calls) - b3.total(c1, calls)) / (r2 - r1))
        row = found[name] = {kind: per(calls) for kind, calls in SHOWN.items()}
        row["other"] = per(set(c2) - known)
        row["all"] = per(set(c2))
        print(f"{name:14} " + " ".join(f"{v:10.3f}" for v in row.values()), flush=True)


def instructions(names, options, report):
    if not micro.has_valgrind(): return
    few, many = (4, 12) if options.smoke else (10, 50)
    print("\nuser-space instructions per connection", flush=True)
    found = report["instructions_per_connection"] = {}
    for name in names:
        if name in servers.URING: continue
        found[name] = rounds.instructions(rounds.command(name), lambda port, n: churn(port, BATCH, n), few, many) / BATCH
        print(f"{name:14} {found[name]:8.0f}", flush=True)


def run(options, report):
    if why := rounds.unable():
        print(f"B7: SKIPPED, {why}"); return None
    servers.build_own(); servers.build_peers()
    names = [servers.FLOOR, "raw"] + ([] if options.smoke else rounds.peers(options))
    servers.same_answers(names)
    syscalls(names, options, report)
    instructions(names, options, report)
    number, connections = (1, 640) if options.smoke else (options.rounds, min(MOST, EACH_SECOND * options.seconds))
    print(f"\nCPU per connection, {BATCH} at a time, {number} rounds of {connections}, "
          + rounds.cap_said(), flush=True)
    with rounds.Load(): seen = rounds.in_turn(names + [rounds.AGAIN], number, lambda name: cpu(name, connections))
    values = report["cpu"] = rounds.against_floor(seen)
    print(f"{'server':14} {'us':>7} {'x floor':>8}")
    for name, v in values.items(): print(f"{name:14} {v['value']:7.2f} {v['ratio']:8.3f} +- {v['spread']:.3f}", flush=True)
    chart.bars(servers.OUT / "B7.svg", "B7: CPU for a connection with one request (less is better)", "us", [(n, [("us", v["value"])]) for n, v in values.items()])
    word, text = rounds.judge("CPU per connection", values, "raw", MAX_RATIO)
    if found := report.get("syscalls_per_connection"): text += f"; {found['raw']['all']:.2f} syscalls, the floor {found[servers.FLOOR]['all']:.2f}"
    report["overview"] = [{"what": "CPU for connect, request, close, x floor", "value": values["raw"]["ratio"], "target": MAX_RATIO, "floor": 1.0, "verdict": word,
                           "peer": min((v["ratio"] for n, v in values.items() if n not in ("raw", servers.FLOOR, rounds.AGAIN)), default=None)}]
    return [(word, text)]
