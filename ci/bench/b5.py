"""B5: a hub's broadcast to 1024 members: instructions, syscalls and eventfd writes for a delivery, the reactor's share of the
CPU, deliveries/s; against a funnel through the reactor and against tokio with a channel for each connection.

The funnel promises what the hub does: a queue for each member with the same three limits, appended to by any thread, and an
answer for each frame. The mailbox, reported and not judged, promises none of that: one list of frames for the reactor.

Two windows: 16 broadcasts under way (unpaced: whoever lets frames wait for each other saves system calls and instructions,
and the hub never does while members keep up), and 1 (each broadcast by itself: one send for a delivery, for all).
Every run checks every byte and the order at every member: a program that loses or corrupts anything does not finish."""
import os, re, resource, shutil, statistics, subprocess, tempfile

import b3, chart, micro, servers

MEMBERS, LENGTHS, WINDOWS = 1024, [9, 256, 8192], [16, 1]
WHO = {"epoxide": "hub-epoxide", "sequenced": "hub-sequenced", "funnel": "hub-funnel", "mailbox": "hub-mailbox", "tokio": "hub-tokio"}
SENDS = ["sendto", "sendmsg", "writev", "write"]
FUNNEL, TOKIO = 0.8, 0.6
# What the others may lose by a member that never reads.
UNDISTURBED = 0.95
# What a short run cannot tell apart from zero: a tick of the CPU clock.
TICK = os.sysconf("SC_CLK_TCK")


def environment(window, stalled=0): return dict(os.environ, HUB_WINDOW=str(window), HUB_STALLED=str(stalled))


def command(who, length, broadcasts): return [str(micro.PROGRAM), WHO[who], str(MEMBERS), str(length), str(broadcasts)]


def plain(who, length, broadcasts, window, stalled=0):
    """A run by itself: what the program prints, by name."""
    p = subprocess.run(command(who, length, broadcasts), env=environment(window, stalled), capture_output=True, text=True, timeout=600)
    if p.returncode: raise SystemExit(f"micro {who} {length} failed:\n{p.stderr[-2000:]}")
    return {n: int(v) for n, v in re.findall(r"^(\w+) (\d+)$", p.stdout, re.M)}


def instructions(who, length, few, many, window):
    """User-space instructions of a delivery, the receiver's process not counted."""
    def collected(n):
        p = subprocess.run(["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"] + command(who, length, n),
                           env=environment(window), capture_output=True, text=True, timeout=900)
        found = re.search(r"Collected : (\d+)", p.stderr)
        if p.returncode or not found: raise SystemExit(f"micro {who} {length} failed under valgrind:\n{p.stderr[-2000:]}")
        return int(found[1])
    return (collected(many) - collected(few)) / ((many - few) * MEMBERS)


def syscalls(who, length, few, many, window):
    """Calls that send, for a delivery. The receiver sends nothing but a byte for a broadcast."""
    def calls(n):
        with tempfile.NamedTemporaryFile("r", suffix=".strace") as summary:
            p = subprocess.run(["strace", "-f", "-c", "-U", "calls,errors,name", "-o", summary.name] + command(who, length, n),
                               env=environment(window), capture_output=True, text=True, timeout=900)
            if p.returncode: raise SystemExit(f"micro {who} {length} failed under strace:\n{p.stderr[-2000:]}")
            rows = re.findall(r"^\s*(\d+)[ \t]+(?:(?:\d+)[ \t]+)?([a-z]\w*)\s*$", summary.read(), re.M)
            return sum(int(count) for count, name in rows if name in SENDS)
    return (calls(many) - calls(few)) / ((many - few) * MEMBERS)


def beside_a_stalled(rounds, timed, report):
    """One member never reads: what the others get, against the same with none that stalls."""
    length, window = LENGTHS[-1], WINDOWS[0]
    runs = {0: [], 1: []}
    for _ in range(rounds):
        # A B B A: a drift of the machine meets both alike.
        for stalled in (0, 1, 1, 0): runs[stalled].append(plain("epoxide", length, timed, window, stalled))
    rates = {stalled: [1e9 * timed / r["nanoseconds"] for r in of] for stalled, of in runs.items()}
    plainly = statistics.median(rates[0])
    # What the machine calls equal: the two runs with none that stalls in a round, against each other.
    noise = statistics.median(abs(a - b) / plainly for a, b in zip(rates[0][::2], rates[0][1::2]))
    ratio = statistics.median(rates[1]) / plainly
    share = reactor_share(runs[1])
    report["stalled"] = {"ratio": ratio, "noise": noise, "share": share, "rates": rates}
    where = f"{length} B, window {window}, one member never reads"
    verdict = "INCONCLUSIVE" if noise > 1 - UNDISTURBED else "PASS" if ratio >= UNDISTURBED else "FAIL"
    return [(verdict, f"{where}: {ratio:.3f} x the broadcasts/s of none, target >= {UNDISTURBED}; none against itself +- {noise:.3f}"),
            ("PASS" if share <= .05 else "FAIL", f"{where}: {share:.1%} of a CPU for the reactor, target <= 5 %")]


def reactor_share(runs):
    """The reactor's share of a CPU over these runs."""
    return sum(r["reactor_ticks"] for r in runs) / TICK / (sum(r["nanoseconds"] for r in runs) / 1e9)


def run(options, report):
    if not micro.has_valgrind(): return None
    try: b3.check_strace()
    except b3.Untraceable as why:
        print(f"B5: SKIPPED, strace may not trace here: {why}")
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * MEMBERS + 256
    if hard != resource.RLIM_INFINITY and hard < wanted:
        print(f"B5: SKIPPED, {MEMBERS} members need {wanted} descriptors, the limit is {hard} (ulimit -Hn)")
        return None
    if soft != resource.RLIM_INFINITY: resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    micro.build()
    few, many = (4, 12) if options.smoke else (16, 64)
    rounds, timed = (1, 50) if options.smoke else (options.rounds, 400)
    verdicts, rows = [], {}
    for window in WINDOWS:
        print(f"\n{MEMBERS} members, {window} broadcast{'s' if window > 1 else ''} under way; of each delivery:")
        print(f"{'bytes':>6} {'who':10} {'instructions':>13} {'x funnel':>9} {'x tokio':>8} {'syscalls':>9} {'deliveries/s':>13} {'spread':>7} {'reactor CPU':>12} {'eventfd/broadcast':>18}", flush=True)
        for length in LENGTHS:
            row = rows[f"{window}/{length}"] = {who: {} for who in WHO}
            for who in WHO:
                row[who]["instructions"] = instructions(who, length, few, many, window)
                row[who]["syscalls"] = syscalls(who, length, few, many, window)
            # In turn, so that a noisy neighbour meets all of them.
            runs = {who: [] for who in WHO}
            for i in range(rounds):
                for who in (list(WHO) if i % 2 == 0 else list(WHO)[::-1]): runs[who].append(plain(who, length, timed, window))
            for who, r in row.items():
                rates = [x["deliveries"] * 1e9 / x["nanoseconds"] for x in runs[who]]
                r["rate"], r["spread"] = statistics.median(rates), (max(rates) - min(rates)) / statistics.median(rates)
                if "reactor_ticks" in runs[who][0]:
                    r["share"] = reactor_share(runs[who])
                    r["eventfd"] = sum(x["eventfd_writes"] for x in runs[who]) / (timed * rounds)
                share = f"{r['share']:12.1%} {r['eventfd']:18.4f}" if "share" in r else f"{'-':>12} {'-':>18}"
                print(f"{length:6} {who:10} {r['instructions']:13.0f} {r['instructions'] / row['funnel']['instructions']:9.2f} "
                      f"{r['instructions'] / row['tokio']['instructions']:8.2f} {r['syscalls']:9.3f} {r['rate']:13.0f} {r['spread']:7.0%} {share}", flush=True)
            own, where = row["epoxide"], f"{length} B, window {window}"
            judge = lambda ok, text: verdicts.append(("PASS" if ok else "FAIL", f"{where}: {text}"))
            for rival, target in (("funnel", FUNNEL), ("tokio", TOKIO)):
                ratio = own["instructions"] / row[rival]["instructions"]
                judge(ratio <= target, f"{own['instructions']:.0f} instructions per delivery, {ratio:.2f} x {rival}, target <= {target}")
            judge(own["syscalls"] <= 1.01, f"{own['syscalls']:.3f} syscalls per delivery, target <= 1.01")
            judge(own["share"] <= .05, f"{own['share']:.1%} of a CPU for the reactor, target <= 5 %")
            judge(own["eventfd"] <= .01, f"{own['eventfd']:.4f} eventfd writes per broadcast, target <= 0.01")
    verdicts += beside_a_stalled(rounds, timed, report)
    report["rows"], report["members"] = rows, MEMBERS
    verdicts.append(("PASS", "0 corrupt, reordered or undelivered frames: every run has checked every byte"))
    chart.bars(servers.OUT / "B5.svg", f"B5: user-space instructions per delivery, {MEMBERS} members (fewer is better)", "",
               [(f"{key.split('/')[1]} B, window {key.split('/')[0]}", [(who, row[who]["instructions"]) for who in WHO]) for key, row in rows.items()], digits=0)
    return verdicts
