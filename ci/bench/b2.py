"""B2: B1 with 16 requests pipelined. User-space instructions and syscalls per request, then CPU per request in rounds
(peers/ab.py), capped."""
import os, shutil, socket, statistics

import b1, b3, chart, micro, rounds, servers

PIPELINED, MAX_RATIO = 16, 1.05


def batches(port, connections, each):
    """`each` batches on every connection; the number of answers."""
    length = PIPELINED * rounds.answer_length(port)
    clients = [socket.create_connection(("127.0.0.1", port), 20) for _ in range(connections)]
    for _ in range(each):
        for c in clients: c.sendall(PIPELINED * rounds.REQUEST)
        for c in clients: rounds.take(c, length)
    for c in clients: c.close()
    return connections * each * PIPELINED


def instructions(names, options, report):
    if not micro.has_valgrind(): return
    few, many = (20, 60) if options.smoke else (100, 400)
    print(f"user-space instructions per request, {PIPELINED} at a time, 8 connections", flush=True)
    found = report["instructions_per_request"] = {}
    for name in names:
        if name in servers.URING: continue
        found[name] = rounds.instructions(rounds.command(name), lambda port, n: batches(port, 8, n), few, many) / (8 * PIPELINED)
        print(f"{name:14} {found[name]:7.1f}", flush=True)


def syscalls(names, options, report):
    try: b3.check_strace()
    except b3.Untraceable as why:
        print(f"syscalls: not measured, strace may not trace here: {why}"); return
    each = 10 if options.smoke else 50
    print(f"\nsyscalls per request, {PIPELINED} at a time, 16 connections", flush=True)
    found = report["syscalls_per_request"] = {}
    for name in names:
        if name in servers.URING: continue
        (r1, c1, _), (r2, c2, _) = (b3.one_run(rounds.command(name), 16, n, batches) for n in (each, 4 * each))
        found[name] = {kind: max(0.0, (b3.total(c2, calls) - b3.total(c1, calls)) / (r2 - r1)) for kind, calls in b3.KINDS.items()}
        print(f"{name:14} " + "  ".join(f"{k} {v:.4f}" for k, v in found[name].items()), flush=True)


def cpu(names, options, report):
    if why := rounds.unable() or (None if shutil.which("wrk") else "wrk is missing (ci/setup)"):
        print(f"CPU per request: not measured, {why}"); return
    number, seconds = (1, 1) if options.smoke else (options.rounds, options.seconds)
    print(f"\nCPU per request, {options.connections} connections, {PIPELINED} at a time, {number} rounds of {seconds} s, "
          + rounds.cap_said(), flush=True)
    _, seen = b1.tool("ab.py", ["-r", str(number), "-d", str(seconds), "-c", str(options.connections), "-p", str(PIPELINED), *rounds.cap_option()]
                      + [f"{n}={rounds.command(n)}" for n in names + [rounds.AGAIN]])
    values = report["cpu"] = rounds.against_floor({n: [row[1] for row in rows] for n, rows in seen["res"].items()})
    for name, rows in seen["res"].items():
        values[name]["requests_per_second"] = statistics.median(row[0] for row in rows)
        values[name]["errors"] = sum("err" in row[4] for row in rows)
    print("\nratios of CPU per request to the floor, median and half of (highest - lowest)")
    for name, v in values.items(): print(f"{name:14} {v['ratio']:6.3f} +- {v['spread']:.3f}" + (f"   ERRORS in {v['errors']} rounds" if v["errors"] else ""))


def run(options, report):
    servers.build_own(); servers.build_peers()
    names = [servers.FLOOR, "raw"] + ([] if options.smoke else rounds.peers(options))
    servers.same_answers(names)
    instructions(names, options, report)
    syscalls(names, options, report)
    cpu(names, options, report)
    if found := report.get("instructions_per_request"):
        chart.bars(servers.OUT / "B2.svg", f"B2: user-space instructions per request, {PIPELINED} pipelined (fewer is better)", "",
                   [(n, [("instructions", v)]) for n, v in found.items()], digits=0)
    verdicts = []
    if found := report.get("syscalls_per_request"):
        own, floor = (sum(found[n][k] for k in ("recv", "send")) for n in ("raw", servers.FLOOR))
        verdicts.append(("PASS" if own <= 1.01 * floor else "FAIL", f"raw: {own:.4f} recv and send per request, the floor {floor:.4f}"))
    if values := report.get("cpu"):
        word, text = rounds.judge("CPU per request", values, "raw", MAX_RATIO)
        if found := report.get("instructions_per_request"): text += f"; {found['raw']:.0f} instructions per request, the floor {found[servers.FLOOR]:.0f}"
        verdicts.append((word, text))
        if values["raw"]["errors"]: verdicts.append(("FAIL", "raw: wrk saw errors"))
        report["overview"] = [{"what": f"CPU per request, {PIPELINED} pipelined, x floor", "value": values["raw"]["ratio"], "target": MAX_RATIO, "floor": 1.0, "verdict": word,
                               "peer": min((v["ratio"] for n, v in values.items() if n not in ("raw", servers.FLOOR, rounds.AGAIN)), default=None)}]
    return verdicts or None
