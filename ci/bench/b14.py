"""B14: the blocking pool. Instructions of one job, submitted and awaited: with a parked thread, in bursts, and with none that
is parked, against tokio's spawn_blocking. Counts cover all threads."""
import chart, micro, servers

WORKLOADS = {"parked": "a job at a time, its thread is parked", "burst": "bursts of 64 jobs",
             "none": "no thread is parked: each job starts one"}
RUNTIMES = ["epoxide", "tokio"]
# No more threads than both pools start.
COUNTS = {"parked": (1_000, 5_000), "burst": (1_280, 6_400), "none": (32, 224)}


def run(options, report):
    if not micro.has_valgrind(): return None
    micro.build()
    rows = {}
    print("user-space instructions of each job, all threads")
    for workload, what in WORKLOADS.items():
        few, many = COUNTS[workload]
        if options.smoke: few, many = few // 4, many // 4
        rows[workload] = {r: micro.per_item(r, workload, few, many) for r in RUNTIMES}
        print(f"{workload:8} " + " ".join(f"{r} {v:9.0f}" for r, v in rows[workload].items()) + f"   {what}", flush=True)
    report["instructions"] = rows
    chart.bars(servers.OUT / "B14.svg", "B14: user-space instructions of a blocking job (fewer is better)", "",
               [(f"{w} {r}", [(r, rows[w][r])]) for w in WORKLOADS for r in RUNTIMES], digits=0)
    return micro.judge(rows, WORKLOADS, ["tokio"])
