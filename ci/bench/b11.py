"""B11: the executor. Instructions of a spawn, a yield and a wake, on one thread and across threads, against tokio's LocalSet
and async-executor.

Where they go, by callgrind, in instructions of ours:

spawn    Two allocations and their releases, the task and what its handle waits for: 355 of them are malloc's. Tasks of
         async-executor have one, but it may only be made by unsafe code: the result may be `!Send`, the waker must be `Send`.
         A third one, the task's header, is used again for later tasks (exec/spare.rs).
cross    valgrind lets one thread run at a time, and the waking one mostly comes first: the runtime is awake. 240 are the
         workload's own (two polls' closure, the thread's lock, its futex), 60 the push into the ring of wakes and the look at
         the flag of law 7, 75 the pop and the look-up of the task by its id, 85 the poll. What tokio has less: its queue
         is a mutex that a woken task may have to wait for, and holds the task itself; our waker holds an id (law 9), so
         that the task can be `!Send`. On a machine so loaded that a pass under valgrind takes 100 ms the stall detector
         times each poll: 40 more.
asleep   The same with a runtime that sleeps: a pass of the loop is 430, and an eventfd is written to."""
import chart, micro, servers

WORKLOADS = {"spawn": "spawn a task, run it, await its end", "yield": "yield to other tasks",
             "wake": "wake a task of the same thread", "cross": "wake a task from another thread, its runtime awake"}
# With a pause before each wake: fewer of them.
PAUSED = {"asleep": "wake a task from another thread, its runtime asleep"}
RUNTIMES = ["epoxide", "tokio", "async-executor"]


def run(options, report):
    if not micro.has_valgrind(): return None
    micro.build()
    few, many = (1_280, 3_840) if options.smoke else (12_800, 64_000)
    print("`cross` and `asleep` count both threads, and how the woken one is put to sleep: async-executor's block_on parks on a "
          "futex and watches no sockets, the others sleep in epoll_wait.")
    rows = micro.table(WORKLOADS, RUNTIMES, few, many, report)
    rows |= micro.table(PAUSED, RUNTIMES, few // 10, many // 10, report)
    report["instructions"] = rows
    workloads = WORKLOADS | PAUSED
    chart.bars(servers.OUT / "B11.svg", "B11: user-space instructions of each (fewer is better)", "",
               [(w, [(r, rows[w][r]) for r in RUNTIMES]) for w in workloads], digits=0)
    return micro.judge(rows, workloads, ["tokio", "async-executor"])
