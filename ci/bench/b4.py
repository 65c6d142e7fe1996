"""B4: handlers wholly on worker threads (sample `threadpool`), with and without the optimistic recv, without the
reactor's giving way to its workers (`prompt`: no naps before it waits, and its wake interrupts them), against the same code
with every read and flush posted to the reactor (`funnel`) and tokio's multi-thread runtime with two workers.
Syscalls per request (strace) at 64 connections and at one, instructions per request at 8; CPU per request in rounds is
shown, and judged only where the machine is quiet enough.

With one connection a request costs a futex pair that tokio does not pay: the reactor learns of the bytes and wakes a parked
worker, which parks again behind its answer; tokio's worker waits in epoll itself. A worker that spun before it parks would
find the next request only after the client's whole turn, which is longer than the pair takes, and on the CPU that
its own reactor needs to see that request; so it parks at once (argued, no spin was measured)."""
import os, shutil, statistics

import b1, b3, chart, micro, rounds, servers

SHOWN = ["recv", "send", "epoll_wait", "epoll_ctl", "futex", "write"]
# Our own counters, per request.
COUNTERS = ["parks", "probes", "probes_missed", "naps", "eventfd_writes", "worker_polls"]
AGAIN = "threadpool_again"  # the same program: what this machine calls equal


def commands():
    ours = f"{servers.sample('threadpool')} --addr {{addr}} --reactors 1 --workers 2 --body bench"
    return {"threadpool": ours, "no_optimistic": ours + " --optimistic false", "prompt": ours + " --moderation 0",
            "funnel": f"{micro.TARGET}/release/funnel --addr {{addr}} --reactors 1 --workers 2 --body bench",
            "tokio_mt": f"{servers.PEERS_TARGET}/release/tokio_mt {{addr}} 2"}


def census(command, connections, each):
    """Per-request figures, the start subtracted."""
    r1, c1, k1 = b3.one_run(command, connections, max(1, each // 4))
    r2, c2, k2 = b3.one_run(command, connections, each)
    per = {kind: max(0.0, (b3.total(c2, b3.KINDS[kind]) - b3.total(c1, b3.KINDS[kind])) / (r2 - r1)) for kind in SHOWN}
    counters = {n: (k2[n] - k1[n]) / (r2 - r1) for n in COUNTERS if n in k1 and n in k2}
    # A connection that ends tells the reactor; how many of those found it asleep differs between the two runs.
    writes = max(0, k2.get("eventfd_writes", 0) - k1.get("eventfd_writes", 0) - connections) / (r2 - r1)
    return {"requests": r2, "counted": r2 - r1, "per_request": per, "counters": counters, "eventfd_writes_with_data": writes}


def syscalls(programs, options, report):
    try: b3.check_strace()
    except b3.Untraceable as why:
        print(f"syscalls: not measured, strace may not trace here: {why}"); return
    rows = report["syscalls"] = {}
    for connections in [64, 1]:
        each = options.requests if connections > 1 else 16 * options.requests
        print(f"\nsyscalls per request, {connections} connection{'s' if connections > 1 else ''}")
        print(f"{'server':14} " + " ".join(f"{k:>10}" for k in SHOWN))
        for name, command in programs.items():
            row = rows.setdefault(name, {})[str(connections)] = census(command, connections, each)
            print(f"{name:14} " + " ".join(f"{v:10.4f}" for v in row["per_request"].values()) + "   "
                  + " ".join(f"{k} {v:.3f}" for k, v in row["counters"].items()), flush=True)
    chart.bars(servers.OUT / "B4.svg", "B4: syscalls per request off the reactor, 64 connections", "",
               [(n, list(r["64"]["per_request"].items())) for n, r in rows.items()])


def instructions(programs, report):
    if not micro.has_valgrind(): return
    print("\ninstructions per request, 8 connections", flush=True)
    text, _ = b1.tool("instr.py", ["-c", "8"] + [f"{n}={c}" for n, c in programs.items()])
    report["instructions_per_request"] = dict(b1.figures(text))


def cpu(programs, options, report):
    if not shutil.which("wrk") or not shutil.which("taskset") or len(os.sched_getaffinity(0)) < 2: return
    print(f"\nCPU per request, {options.connections} connections, {options.rounds} rounds of {options.seconds} s, "
          + rounds.cap_said(), flush=True)
    specs = [f"{n}={c}" for n, c in {**programs, AGAIN: programs["threadpool"]}.items()]
    _, seen = b1.tool("ab.py", ["-r", str(options.rounds), "-d", str(options.seconds), "-c", str(options.connections), *rounds.cap_option()] + specs)
    base = [row[1] for row in seen["res"]["threadpool"]]
    report["cpu"] = {name: {"cpu_us_per_request": statistics.median(r[1] for r in rows),
                            "ours_to_it": statistics.median(own / r[1] for own, r in zip(base, rows)),
                            "per_round": [r[1] for r in rows]} for name, rows in seen["res"].items()}
    ratios = [own / r[1] for own, r in zip(base, seen["res"][AGAIN])]
    report["cpu_noise"] = (max(ratios) - min(ratios)) / 2


def judge(report):
    verdicts = []
    if rows := report.get("syscalls"):
        for connections in ["64", "1"]:
            own = rows["threadpool"][connections]
            writes = own["eventfd_writes_with_data"]
            verdicts.append(("PASS" if b3.none(writes, own["counted"]) else "FAIL", f"threadpool, {connections} connections: {writes:.4f} eventfd writes per request beyond one for each end of a connection, target 0, i.e. <= {b3.NONE} or {b3.STRAY} calls"))
        own, funnel = (sum(rows[n]["64"]["per_request"].values()) for n in ("threadpool", "funnel"))
        verdicts.append(("PASS" if own < funnel else "FAIL", f"threadpool: {own:.3f} syscalls per request at 64 connections, funnel {funnel:.3f}"))
        probes = rows["threadpool"]["64"]["counters"].get("probes_missed", 0.0)
        verdicts.append(("PASS" if probes <= 0.01 + 20 / rows["threadpool"]["64"]["requests"] * 64 else "FAIL", f"optimistic recv: {probes:.4f} recvs per request for nothing at 64 connections, target about 1 in 128"))
    if found := report.get("instructions_per_request"):
        own = found["threadpool"]
        for rival in ["funnel", "tokio_mt"]:
            verdicts.append(("PASS" if own <= found[rival] else "FAIL", f"threadpool: {own} instructions per request, {rival} {found[rival]}"))
    if values := report.get("cpu"):
        noise = report["cpu_noise"]
        for rival in ["tokio_mt", "funnel"]:
            ratio = values[rival]["ours_to_it"]
            verdict = "INCONCLUSIVE" if noise > 0.05 else "PASS" if ratio <= 1 else "FAIL"
            verdicts.append((verdict, f"threadpool: {ratio:.3f} x the CPU per request of {rival}; against itself +- {noise:.3f}"))
    return verdicts


def run(options, report):
    servers.build(["threadpool"])
    micro.build()
    programs = commands()
    if options.smoke:
        programs = {n: programs[n] for n in ("threadpool", "no_optimistic", "funnel")}
        options.requests = min(options.requests, 40)
        syscalls(programs, options, report)
        return judge(report)
    servers.build_peers()
    syscalls(programs, options, report)
    instructions(programs, report)
    cpu(programs, options, report)
    return judge(report)
