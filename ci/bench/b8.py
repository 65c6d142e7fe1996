"""B8: 20 clients that ping beside one that floods. Each pings every 20 ms, one after the other; the flood is requests without a
pause on one connection, its answers read and thrown away. Rounds A B B A: A is without the flood, B with it.

The server has CPU 0 for itself and must be the bottleneck (its use is printed); the clients are on CPU 1, where the flood runs
only when no ping is to be sent or received (SCHED_IDLE)."""
import gc, multiprocessing, os, select, socket, statistics, time

import chart, rounds, servers

PINGERS, PERIOD = 20, .020
MAX_RATIO = 3.0
PATIENCE = 10  # seconds for an answer; then it counts as lost
BLOCK = (1 << 16) // len(rounds.REQUEST) * rounds.REQUEST


def flood(port, stop, count):
    """Another process: writes requests and reads what comes until told to stop."""
    os.sched_setaffinity(0, {1})
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    s = socket.create_connection(("127.0.0.1", port), 20)
    s.setblocking(False)
    poll, view, sent, into = select.poll(), memoryview(BLOCK), 0, bytearray(1 << 18)
    poll.register(s, select.POLLIN | select.POLLOUT)
    while not stop.is_set():
        for _, ready in poll.poll(100):
            try:
                if ready & select.POLLOUT: sent = (sent + s.send(view[sent:])) % len(BLOCK)
            except BlockingIOError: pass
            try:
                if ready & select.POLLIN: count.value += (n := s.recv_into(into)); assert n, "the server has closed the flood"
            except BlockingIOError: pass
    # Without a FIN: what is under way is of no interest.
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    s.close()


def ping(port, seconds):
    """Latencies in microseconds of every ping sent in so many seconds, and how many were not answered."""
    length = rounds.answer_length(port)
    clients = [socket.create_connection(("127.0.0.1", port), 20) for _ in range(PINGERS)]
    poll, by, waiting, seen = select.poll(), {c.fileno(): c for c in clients}, {}, []
    for c in clients: c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1); poll.register(c, select.POLLIN)
    gc.disable()
    begun = time.monotonic()
    turn, end = 0, begun + seconds

    def receive(patience):
        for fd, _ in poll.poll(max(0, patience) * 1000):
            if not (n := len(by[fd].recv(65536))): raise SystemExit("the server has closed a pinging client")
            left, sent = waiting[fd]
            if left > n: waiting[fd] = left - n, sent
            else: seen.append((time.perf_counter() - sent) * 1e6); del waiting[fd]

    try:
        while (now := time.monotonic()) < end:
            due = begun + turn * PERIOD / PINGERS
            if now < due: receive(due - now); continue
            c = clients[turn % PINGERS]
            turn += 1
            if c.fileno() in waiting: continue  # one at a time: what is late shows in its own latency
            waiting[c.fileno()] = length, time.perf_counter()
            c.sendall(rounds.REQUEST)
        limit = time.monotonic() + PATIENCE
        while waiting and time.monotonic() < limit: receive(.1)
    finally: gc.enable()
    # Those that were never answered count for as long as was waited.
    seen += [PATIENCE * 1e6] * len(waiting)
    for c in clients: c.close()
    return seen, len(waiting)


def with_flood(server, seconds):
    stop, count = multiprocessing.Event(), multiprocessing.Value("Q", 0, lock=False)
    p = multiprocessing.Process(target=flood, args=(server.port, stop, count), daemon=True)
    p.start()
    try:
        for _ in range(500):
            if count.value: break
            time.sleep(.01)
        else: raise SystemExit("the flood gets no answer")
        before, cpu, begun = count.value, server.cpu(), time.monotonic()
        seen, lost = ping(server.port, seconds)
        took = time.monotonic() - begun
        return seen, lost, (server.cpu() - cpu) / 1e9 / took, (count.value - before) / took / 1e6
    finally:
        stop.set()
        p.join(10)
        if p.is_alive(): p.kill(); p.join()


def measure(name, seconds):
    """One round A B B A: latencies without and with the flood, lost pings, use of the CPU, MB/s of answers to the flood."""
    with rounds.Server(rounds.command(name)) as server:
        ping(server.port, .3)
        quiet, noisy, lost, use, rate = [], [], 0, [], []
        for flooded in (False, True, True, False):
            if not flooded:
                seen, missing = ping(server.port, seconds)
                quiet.append(seen)
            else:
                seen, missing, used, answered = with_flood(server, seconds)
                noisy.append(seen); use.append(used); rate.append(answered)
                server.settled()  # the flood is gone before it is quiet again
            lost += missing
    return quiet, noisy, lost, statistics.mean(use), statistics.mean(rate)


def p99(seen): return sorted(seen)[int(.99 * (len(seen) - 1))]


def run(options, report):
    if why := rounds.unable():
        print(f"B8: SKIPPED, {why}"); return None
    servers.build_own(); servers.build_peers()
    names = [servers.FLOOR, "raw"] + ([] if options.smoke else rounds.peers(options))
    servers.same_answers(names)
    number, seconds = (1, .5) if options.smoke else (options.rounds, 1)
    print(f"{PINGERS} clients that ping, one that floods; {number} rounds A B B A of {seconds} s", flush=True)
    with rounds.Load(): seen = rounds.in_turn(names, number, lambda name: measure(name, seconds))
    print(f"{'server':14} {'p99 alone':>10} {'beside':>9} {'ratio':>7} {'worst':>10} {'lost':>5} {'CPU use':>8} {'flood MB/s':>11}")
    values = report["values"] = {}
    for name, rows in seen.items():
        quiet, noisy = [p99(a) for r in rows for a in r[0]], [x for r in rows for b in r[1] for x in b]
        alone = statistics.median(quiet)
        v = values[name] = {"alone_us": alone, "alone_spread": (max(quiet) - min(quiet)) / 2 / alone, "beside_us": statistics.median(p99(b) for r in rows for b in r[1]),
                            "worst_us": max(noisy), "pings": len(noisy), "lost": sum(r[2] for r in rows), "use": statistics.mean(r[3] for r in rows), "flood_mb_s": statistics.mean(r[4] for r in rows)}
        v["ratio"] = v["beside_us"] / alone
        print(f"{name:14} {alone:10.0f} {v['beside_us']:9.0f} {v['ratio']:7.2f} {v['worst_us']:10.0f} {v['lost']:5} {v['use']:8.2f} {v['flood_mb_s']:11.0f}", flush=True)
    chart.bars(servers.OUT / "B8.svg", "B8: p99 of a ping beside a flood (less is better)", "us", [(n, [("us", v["beside_us"])]) for n, v in values.items()], digits=0)
    own = values["raw"]
    word = "INCONCLUSIVE" if own["alone_spread"] > MAX_RATIO - 1 else "PASS" if own["ratio"] <= MAX_RATIO else "FAIL"
    report["overview"] = [{"what": "p99 of a ping beside a flood, x alone", "value": own["ratio"], "target": MAX_RATIO, "floor": values[servers.FLOOR]["ratio"], "verdict": word,
                           "peer": min((v["ratio"] for n, v in values.items() if n not in ("raw", servers.FLOOR)), default=None)}]
    return [("PASS" if own["lost"] == 0 else "FAIL", f"raw: {own['lost']} of {own['pings']} pings not answered beside the flood"),
            (word, f"raw: p99 {own['beside_us']:.0f} us beside the flood, {own['ratio']:.2f} x alone, target <= {MAX_RATIO:.0f}; alone against itself +- {own['alone_spread']:.2f}; "
                   f"the floor {values[servers.FLOOR]['ratio']:.2f} x")]
