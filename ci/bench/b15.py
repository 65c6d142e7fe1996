"""B15: one healthy client beside a fleet of slow-loris clients, which send half a head and then a byte now and then.
Rounds A B B A: in A, "unserved", the fleet is connected to a socket that nobody serves, in B, "served", to the server: what its
clients cost this machine is in both. The healthy client is wrk with one connection. In the end the fleet must be gone by the deadline that `raw` gives a head."""
import os, pathlib, random, re, resource, shutil, signal, socket, statistics, subprocess, threading, time

import chart, servers

FLEET, SMOKE_FLEET = 2000, 100
# The targets: of the median round beside an unserved fleet.
MIN_RATE, MAX_P99 = 0.95, 1.10
SURE = 0.95  # of the ratios drawn anew must lie on one side of the target
ENOUGH = 4    # rounds of each: three equal ones against three come out apart by chance once in ten times, four once in 35
HEAD_DEADLINE = 30  # seconds, as samples/src/http.rs has it
LATE = 3            # seconds on top: the tick, and a busy machine
DRIP = 5            # seconds between two bytes of one client
HALF = b"GET / HTTP/1.1\r\nX: "
UNITS = {"us": 1, "ms": 1e3, "s": 1e6}
SOMAXCONN = pathlib.Path("/proc/sys/net/core/somaxconn")


class Fleet:
    """Connected slow-loris clients; a thread drips their bytes."""
    def __init__(self, port, size):
        self.clients = []
        for _ in range(size):
            s = socket.create_connection(("127.0.0.1", port), 20)
            s.sendall(HALF)
            s.setblocking(False)
            self.clients.append(s)
        self.came = time.monotonic()
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.drip, daemon=True)
        self.thread.start()

    def drip(self):
        while not self.stop.is_set():
            for s in self.clients:
                if self.stop.wait(DRIP / len(self.clients)): return
                try: s.send(b"x")
                except OSError: pass  # it was cut: counted in the end

    def still_there(self):
        """How many the server still keeps."""
        there = 0
        for s in self.clients:
            try: there += s.recv(4096) != b""
            except BlockingIOError: there += 1
            except OSError: pass  # a reset is an end too
        return there

    def outlive(self):
        """Waits for the deadline; (how many were there until shortly before it, how many are left, seconds)."""
        time.sleep(max(0, self.came + HEAD_DEADLINE / 2 - time.monotonic()))
        before = self.still_there()
        limit = self.came + HEAD_DEADLINE + LATE
        while (left := self.still_there()) and time.monotonic() < limit: time.sleep(.2)
        return before, left, time.monotonic() - self.came

    def leave(self):
        self.stop.set()
        self.thread.join()
        for s in self.clients: s.close()


def healthy(port, seconds):
    """(requests/s, p99 in us) of one connection."""
    out = subprocess.run(["taskset", "-c", "1", "wrk", "-t1", "-c1", f"-d{seconds}s", "--latency", f"http://127.0.0.1:{port}/"],
                         capture_output=True, text=True).stdout
    rate, p99 = re.search(r"Requests/sec:\s+([\d.]+)", out), re.search(r"99%\s+([\d.]+)(us|ms|s)", out)
    if not rate or not p99 or "Socket errors" in out: raise SystemExit(f"B15: the healthy client was not served:\n{out}")
    return float(rate[1]), float(p99[1]) * UNITS[p99[2]]


def with_fleet(port, fleet_port, size, seconds):
    """What the healthy client of one port sees beside a fleet at the other."""
    fleet = Fleet(fleet_port, size)
    try:
        seen = healthy(port, seconds)
        if (there := fleet.still_there()) < size: raise SystemExit(f"B15: only {there} of {size} slow clients were there throughout")
        return seen
    finally: fleet.leave()


def verdict(what, served, unserved, target, at_most):
    """The median with a served fleet against the median with an unserved one. How sure that is: on which side of the target the
    ratios of the two lie when the rounds of both are drawn anew from those that were measured."""
    dice, median = random.Random(15), statistics.median
    drawn = sorted(median(dice.choices(served, k=len(served))) / median(dice.choices(unserved, k=len(unserved))) for _ in range(4000))
    met = sum(r <= target if at_most else r >= target for r in drawn) / len(drawn)
    sure = len(served) >= ENOUGH and not 1 - SURE < met < SURE
    word = "INCONCLUSIVE" if not sure else "PASS" if met >= SURE else "FAIL"
    low, high = drawn[len(drawn) // 40], drawn[-1 - len(drawn) // 40]
    return word, (f"{what} with a served fleet: {median(served) / median(unserved):.3f} x with an unserved one ({low:.3f} to {high:.3f} in 95 of 100), "
                  f"target {'<=' if at_most else '>='} {target}: met by {met:.0%} of the ratios drawn anew")


def run(options, report):
    if not shutil.which("wrk") or not shutil.which("taskset") or len(os.sched_getaffinity(0)) < 2:
        print("B15: SKIPPED, it needs wrk, taskset and two CPUs (ci/setup)")
        return None
    size, rounds, seconds = (SMOKE_FLEET, 1, 1) if options.smoke else (FLEET, options.rounds, options.seconds)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < size + 200: raise SystemExit(f"B15: {size} clients need as many descriptors, and RLIMIT_NOFILE is {hard}")
    if (queue := int(SOMAXCONN.read_text())) < size:
        print(f"B15: SKIPPED, the unserved fleet waits in the queue of a socket, and that holds {queue} connections at most, not {size} (sysctl net.core.somaxconn)")
        return None
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, size + 200), hard))
    servers.build(["raw"])
    port = servers.free_port()
    server = subprocess.Popen(["taskset", "-c", "0"] + servers.command("raw").replace("{addr}", f"127.0.0.1:{port}").split(),
                              stdout=subprocess.DEVNULL)
    try:
        for _ in range(200):
            try: socket.create_connection(("127.0.0.1", port), 5).close(); break
            except OSError: time.sleep(.05)
        else: raise SystemExit("B15: raw does not listen")
        healthy(port, 1)
        unserved, served = [], []
        print(f"{size} slow clients, one healthy one; {rounds} rounds A B B A of {seconds} s\n{'':12} {'requests/s':>11} {'p99 us':>8}")
        for _ in range(rounds):
            for is_served in (False, True, True, False):
                # Its backlog holds the whole fleet.
                with socket.create_server(("127.0.0.1", 0), backlog=size + 100) as nobody:
                    seen = with_fleet(port, port if is_served else nobody.getsockname()[1], size, seconds)
                (served if is_served else unserved).append(seen)
                print(f"{'served' if is_served else 'unserved':12} {seen[0]:11.0f} {seen[1]:8.0f}", flush=True)
        fleet = Fleet(port, size)
        try: before, left, took = fleet.outlive()
        finally: fleet.leave()
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(60)
    (rates, p99s), (base_rates, base_p99s) = zip(*served), zip(*unserved)
    rate, p99 = (statistics.median(ours) / statistics.median(base) for ours, base in ((rates, base_rates), (p99s, base_p99s)))
    report.update({"fleet": size, "rounds": rounds, "seconds": seconds, "unserved": unserved, "served": served,
                   "left_after_the_deadline": left, "gone_after_seconds": took})
    chart.bars(servers.OUT / "B15.svg", f"B15: a healthy client, {size} slow-loris clients served against unserved", "x",
               [("requests/s", [("ratio", rate)]), ("p99", [("ratio", p99)])])
    gone = before == size and left == 0
    verdicts = [verdict("requests/s", rates, base_rates, MIN_RATE, False), verdict("p99", p99s, base_p99s, MAX_P99, True),
                ("PASS" if gone else "FAIL", f"{size} slow clients: {before} there at half of the {HEAD_DEADLINE} s deadline, {left} left {took:.1f} s after they came")]
    report["overview"] = [{"what": f"requests/s, {size} slow clients served, x unserved", "value": rate, "target": MIN_RATE, "more": True, "verdict": verdicts[0][0]},
                          {"what": "p99, served, x unserved", "value": p99, "target": MAX_P99, "verdict": verdicts[1][0]}]
    return verdicts
