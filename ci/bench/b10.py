"""B10: timers. Instructions per arm and cancel against tokio's; 100 000 timers due within one second: none early, none lost."""
import re, subprocess

import chart, micro, servers

WORKLOADS = {"churn": "arm and cancel a timer, one after the other", "batch": "arm many timers, then cancel them all"}
RUNTIMES = ["epoxide", "tokio"]


def due(runtime, n):
    """(early, came, latest in us, all armed before the first was due)"""
    p = subprocess.run([str(micro.PROGRAM), runtime, "due", str(n)], capture_output=True, text=True, timeout=120)
    found = re.search(r"early (\d+) came (\d+) latest_us (\d+) armed_in_time (\w+)", p.stdout)
    if p.returncode or not found: raise SystemExit(f"micro {runtime} due {n} failed:\n{p.stdout}{p.stderr}")
    return int(found[1]), int(found[2]), int(found[3]), found[4] == "true"


def run(options, report):
    micro.build()
    few, many = (2_000, 6_000) if options.smoke else (200_000, 1_000_000)
    n = 10_000 if options.smoke else 100_000
    verdicts = []
    if micro.has_valgrind():
        rows = micro.table(WORKLOADS, RUNTIMES, few, many, report)
        verdicts += micro.judge(rows, WORKLOADS, ["tokio"])
        chart.bars(servers.OUT / "B10.svg", "B10: user-space instructions per timer armed and cancelled (fewer is better)", "",
                   [(r, [(w, rows[w][r]) for w in WORKLOADS]) for r in RUNTIMES], digits=0)
    print(f"\n{n} timers due within one second, a task each")
    report["due"] = {}
    for runtime in RUNTIMES:
        early, came, latest, in_time = due(runtime, n)
        report["due"][runtime] = {"timers": n, "early": early, "lost": n - came, "latest_us": latest, "armed_in_time": in_time}
        print(f"{runtime:10} {early} early, {n - came} lost, the latest {latest / 1000:.1f} ms late"
              + ("" if in_time else "   (the first was due before the last was armed)"))
    own = report["due"]["epoxide"]
    verdicts.append(("PASS" if own["early"] == own["lost"] == 0 else "FAIL", f"{n} timers due in one second: {own['early']} early, {own['lost']} lost"))
    return verdicts
