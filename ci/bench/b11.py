"""B11: the executor. Instructions of a spawn, a yield and a wake, on one thread and across threads, against tokio's LocalSet
and async-executor."""
import chart, micro, servers

WORKLOADS = {"spawn": "spawn a task, run it, await its end", "yield": "yield to other tasks",
             "wake": "wake a task of the same thread", "cross": "wake a task that sleeps, from another thread"}
RUNTIMES = ["epoxide", "tokio", "async-executor"]


def run(options, report):
    if not micro.has_valgrind(): return None
    micro.build()
    few, many = (1_280, 3_840) if options.smoke else (12_800, 64_000)
    print("`cross` counts both threads, and how the woken one is put to sleep: async-executor's block_on parks on a futex "
          "and watches no sockets, the others sleep in epoll_wait.")
    rows = micro.table(WORKLOADS, RUNTIMES, few, many, report)
    chart.bars(servers.OUT / "B11.svg", "B11: user-space instructions of each (fewer is better)", "",
               [(w, [(r, rows[w][r]) for r in RUNTIMES]) for w in WORKLOADS], digits=0)
    return micro.judge(rows, WORKLOADS, ["tokio", "async-executor"])
