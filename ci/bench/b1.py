"""B1: keep-alive GET. User-space instructions per request (peers/instr.py), then requests/s and CPU
per request, capped, in alternating rounds (peers/ab.py). Both tools run as they are."""
import contextlib, io, os, re, runpy, shutil, statistics, sys

import chart, servers
from rounds import peers

# The targets; the margin is what requests/s may lose against the floor.
MAX_INSTRUCTIONS, MIN_RATIO = 800, 0.97
# Runs of our own, whose median counts: how many requests a pass of the loop finds differs from run to run.
REPEATS = 5
# The same server on pipes: what the pipes may add, as a ratio and in all.
MAX_PIPE_RATIO, MAX_PIPE_INSTRUCTIONS = 1.15, 900
CGROUP = "/sys/fs/cgroup/cpu"
AGAIN = "floor_again"  # the floor a second time: what this machine calls equal


class Tee(io.StringIO):
    """Keeps what a tool prints and shows it at once: a row can take a minute."""
    def write(self, text):
        sys.__stdout__.write(text); sys.__stdout__.flush()
        return super().write(text)


def tool(name, args):
    """Runs one of the peers' tools in this process: its printed text and its variables."""
    argv, sys.argv = sys.argv, [name] + args
    try:
        with contextlib.redirect_stdout(Tee()) as out: variables = runpy.run_path(str(servers.PEERS / name))
    finally: sys.argv = argv
    return out.getvalue(), variables


def specs(names): return [f"{n}={servers.command(servers.FLOOR if n == AGAIN else n)}" for n in names]


def figures(text):
    """What instr.py printed, in its order: (name, instructions)."""
    return [(name, int(count)) for name, count in re.findall(r"^(\S+)\s+(\d+) instructions/request", text, re.M)]


def instructions(names, options, report):
    names = [n for n in names if n not in servers.URING]
    if not shutil.which("valgrind"):
        print("instructions: valgrind is missing, not measured (ci/setup)"); return
    repeats = 1 if options.smoke else REPEATS
    print(f"instructions per request, 8 connections; {' and '.join(servers.OWN)} {repeats} times", flush=True)
    text, _ = tool("instr.py", ["-c", "8"] + specs([n for n in names for _ in range(repeats if n in servers.OWN else 1)]))
    runs = {n: [] for n in names}
    for name, count in figures(text): runs[name].append(count)
    missing = [n for n in names if not runs[n]]
    if missing: raise SystemExit(f"B1: instr.py gave no figure for {', '.join(missing)}")
    for name in servers.OWN: print(f"{name:14} median {statistics.median(runs[name]):7.0f}, {min(runs[name])} to {max(runs[name])} in {len(runs[name])} runs")
    report["instructions_per_request"] = {"connections": 8, "values": {n: round(statistics.median(v)) for n, v in runs.items()}, "runs": runs}
    if options.smoke: return
    # Reported: with more connections a pass of the loop finds more requests.
    print("the same with 64 connections", flush=True)
    text, _ = tool("instr.py", ["-c", "64", "-n", "8000"] + specs([servers.FLOOR, *servers.OWN]))
    report["instructions_with_64_connections"] = dict(figures(text))


def rounds(names, options, report):
    if not shutil.which("wrk") or not shutil.which("taskset"):
        print("requests/s: wrk or taskset is missing, not measured (ci/setup)"); return
    if len(os.sched_getaffinity(0)) < 2:
        print("requests/s: one CPU only, server and load cannot be apart: not measured"); return
    capped = os.path.isdir(CGROUP) and os.access(CGROUP, os.W_OK)
    if not capped:
        print("NOT CAPPED: no writable cgroup v1 cpu controller here. The load may be the bottleneck: "
              "requests/s then say little, CPU per request still counts.")
    print(f"requests/s and CPU per request, {options.connections} connections, {options.rounds} rounds of {options.seconds} s, "
          f"{'server capped to 25 % of its core' if capped else 'uncapped'}", flush=True)
    _, seen = tool("ab.py", ["-r", str(options.rounds), "-d", str(options.seconds), "-c", str(options.connections),
                             "--cap", "25" if capped else "0"] + specs(names + [AGAIN]))
    base, values = seen["res"][servers.FLOOR], {}
    for name, rows in seen["res"].items():
        ratio = [r[0] / b[0] for r, b in zip(rows, base)]
        values[name] = {"requests_per_second": statistics.median(r[0] for r in rows),
                        "cpu_us_per_request": statistics.median(r[1] for r in rows),
                        "cpu_use": statistics.median(r[2] for r in rows),
                        "p99_per_round": [r[4] for r in rows], "errors": sum("err" in r[4] for r in rows),
                        "ratio_to_floor": statistics.median(ratio), "ratio_per_round": ratio,
                        "ratio_spread": (max(ratio) - min(ratio)) / 2}
    report["throughput"] = {"connections": options.connections, "rounds": options.rounds, "seconds": options.seconds,
                            "capped": capped, "values": values}
    print("\nratios of requests/s to the floor, median and half of (highest - lowest) over the rounds")
    for name, v in values.items():
        print(f"{name:14} {v['ratio_to_floor']:6.3f} +- {v['ratio_spread']:.3f}   server CPU use {v['cpu_use']:.2f}"
              + (f"   ERRORS in {v['errors']} rounds" if v["errors"] else ""))


def judge(report):
    """One line for each target: PASS, FAIL or INCONCLUSIVE."""
    verdicts = []
    if instr := report.get("instructions_per_request"):
        own = instr["values"]["raw"]
        spread = {n: f"{min(v)} to {max(v)} in {len(v)} runs" for n, v in instr["runs"].items()}
        verdicts.append(("PASS" if own <= MAX_INSTRUCTIONS else "FAIL", f"raw: {own} instructions/request ({spread['raw']}), target <= {MAX_INSTRUCTIONS}"))
        pipe = instr["values"]["pipe"]
        verdicts.append(("PASS" if pipe <= MAX_PIPE_RATIO * own else "FAIL", f"pipe: {pipe / own:.2f} x raw's instructions/request, target <= {MAX_PIPE_RATIO}"))
        verdicts.append(("PASS" if pipe <= MAX_PIPE_INSTRUCTIONS else "FAIL", f"pipe: {pipe} instructions/request ({spread['pipe']}), target <= {MAX_PIPE_INSTRUCTIONS}"))
    if through := report.get("throughput"):
        values = through["values"]
        own, noise = values["raw"]["ratio_to_floor"], values[AGAIN]["ratio_spread"]
        verdict = "INCONCLUSIVE" if noise > 1 - MIN_RATIO or not through["capped"] else "PASS" if own >= MIN_RATIO else "FAIL"
        verdicts.append((verdict, f"raw: {own:.3f} x the floor's requests/s, target >= {MIN_RATIO}; floor against itself +- {noise:.3f}"))
        rivals = {n: v["ratio_to_floor"] for n, v in values.items() if n not in (*servers.OWN, servers.FLOOR, AGAIN)}
        if rivals:
            best = max(rivals, key=rivals.get)
            verdict = "INCONCLUSIVE" if verdict == "INCONCLUSIVE" else "PASS" if own > rivals[best] else "FAIL"
            verdicts.append((verdict, f"raw: {own:.3f} against the best peer, {best} with {rivals[best]:.3f}"))
        if values["raw"]["errors"]: verdicts.append(("FAIL", "raw: wrk saw errors"))
    return verdicts


def run(options, report):
    servers.build_own(); servers.build_peers()
    names = [servers.FLOOR, *servers.OWN] + ([] if options.smoke else peers(options))
    servers.same_answers(names)
    instructions(names, options, report)
    rounds(names, options, report)
    if instr := report.get("instructions_per_request"):
        chart.bars(servers.OUT / "B1-instructions.svg", "B1: user-space instructions per keep-alive request (fewer is better)", "",
                   [(n, [("instructions", v)]) for n, v in instr["values"].items()], digits=0)
    if through := report.get("throughput"):
        chart.bars(servers.OUT / "B1-requests.svg", f"B1: requests/s against the floor, {options.connections} connections (more is better)", "x",
                   [(n, [("ratio", v["ratio_to_floor"])]) for n, v in through["values"].items()])
    return judge(report)
