"""What B2 and B6 to B9 share: a server alone on CPU 0, the load on CPU 1, rounds A B B A, and the verdict on the ratios.

CPU time is the scheduler's own account, in nanoseconds, of every thread of the server, the kernel's work for it included."""
import os, pathlib, re, resource, shutil, signal, socket, statistics, subprocess, tempfile, time

import servers

AGAIN = "floor_again"  # the floor a second time: what this machine calls equal
REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
CGROUP = pathlib.Path("/sys/fs/cgroup/cpu")
CAP, PERIOD = 25, 5000  # percent of its core for a server, in microseconds of a period


def unable():
    """Why nothing can be measured here, or None."""
    if not shutil.which("taskset"): return "taskset is missing (ci/setup)"
    if len(os.sched_getaffinity(0)) < 2: return "one CPU only: server and load cannot be apart"
    if not pathlib.Path("/proc/self/schedstat").exists(): return "this kernel keeps no schedstat"


def descriptors(wanted):
    """Room for so many descriptors, here and in what is started from now on. Why not, or None."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted: return f"{wanted} descriptors are needed, the limit is {hard} (ulimit -Hn)"
    if soft != resource.RLIM_INFINITY: resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))


def capped(): return CGROUP.is_dir() and os.access(CGROUP, os.W_OK)


def cap_said(): return "server capped to 25 % of its core" if capped() else "NOT CAPPED: the load may be the bottleneck"


def cap_option():
    """For ab.py."""
    return ["--cap", "25" if capped() else "0"]


class Load:
    """In its `with` this process is on CPU 1."""
    def __enter__(self):
        self.before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {1} if 1 in self.before else {max(self.before)})

    def __exit__(self, *_): os.sched_setaffinity(0, self.before)


class Server:
    """A server on CPU 0, listening; in a `with`, at whose end it is stopped. `cap`: it may use a quarter of the core, so that
    it is the bottleneck and not the load."""
    def __init__(self, command, cap=False, wrapper=()):
        self.port, self.group = servers.free_port(), None
        self.said = tempfile.TemporaryFile("w+")
        self.p = subprocess.Popen(["taskset", "-c", "0", *wrapper] + command.replace("{addr}", f"127.0.0.1:{self.port}").split(),
                                  stdin=subprocess.DEVNULL, stdout=self.said, stderr=subprocess.STDOUT)
        try:
            self.wait_until_it_listens(command)
            if cap and capped(): self.cap()
        except BaseException:
            self.stop()
            raise

    def wait_until_it_listens(self, command):
        for _ in range(1200):  # a minute: under valgrind it is slow
            if self.p.poll() is not None: break
            try: socket.create_connection(("127.0.0.1", self.port), 5).close(); break
            except OSError: time.sleep(.05)
        else: raise SystemExit(f"`{command}` does not listen on port {self.port}")
        if self.p.poll() is not None: raise SystemExit(f"`{command}` has ended:\n{self.output()[-2000:]}")

    def cap(self):
        self.group = CGROUP / f"epoxide-bench-{self.p.pid}"
        self.group.mkdir()
        (self.group / "cpu.cfs_period_us").write_text(str(PERIOD))
        (self.group / "cpu.cfs_quota_us").write_text(str(PERIOD * CAP // 100))
        (self.group / "cpu.shares").write_text("100000")  # what else runs on the machine disturbs less
        (self.group / "cgroup.procs").write_text(str(self.p.pid))

    def __enter__(self): return self
    def __exit__(self, *_): self.stop()

    def stop(self):
        if self.p.poll() is None:
            self.p.send_signal(signal.SIGTERM)
            try: self.p.wait(20)
            except subprocess.TimeoutExpired: self.p.kill(); self.p.wait()
        if self.group: self.group.rmdir()

    def output(self):
        self.said.seek(0)
        return self.said.read()

    def cpu(self):
        """Nanoseconds of CPU so far."""
        return sum(int(task.joinpath("schedstat").read_text().split()[0]) for task in pathlib.Path(f"/proc/{self.p.pid}/task").iterdir())

    def resident(self):
        """Bytes of memory that it holds."""
        return 1024 * int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{self.p.pid}/status").read_text())[1])

    def descriptors(self): return len(os.listdir(f"/proc/{self.p.pid}/fd"))

    def settled(self):
        """Its descriptors, once their number has not changed for a while: the end of every connection has been seen."""
        last, same = self.descriptors(), 0
        for _ in range(1000):
            time.sleep(.02)
            now = self.descriptors()
            last, same = now, same + 1 if now == last else 0
            if same == 15: return last
        raise SystemExit("connections that have ended do not go")

    def connect(self): return socket.create_connection(("127.0.0.1", self.port), 20)


def answer_length(port):
    """Bytes of the answer to one request."""
    with socket.create_connection(("127.0.0.1", port), 20) as s:
        s.sendall(REQUEST)
        got = b""
        while True:
            got += (part := s.recv(65536))
            if not part: raise SystemExit("the server has closed the connection instead of an answer")
            head, _, body = got.partition(b"\r\n\r\n")
            length = re.search(rb"(?i)content-length: (\d+)", head)
            if length and len(body) >= int(length[1]): return len(head) + 4 + int(length[1])


def take(s, left):
    """Receives so many bytes."""
    while left > 0:
        n = len(s.recv(min(left, 1 << 20)))
        if not n: raise SystemExit("the server has closed a connection early")
        left -= n


def instructions(command, load, few, many):
    """User-space instructions of each of what `load(port, n)` asks for; the start cancels out."""
    def collected(n):
        with Server(command, wrapper=["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]) as server:
            load(server.port, n)
            time.sleep(.3)  # it sees the last FINs
            server.stop()
            found = re.search(r"Collected : (\d+)", server.output())
            if not found: raise SystemExit(f"`{command}` failed under valgrind:\n{server.output()[-2000:]}")
            return int(found[1])
    return (collected(many) - collected(few)) / (many - few)


def in_turn(names, rounds, measure):
    """{name: what measure(name) returned, one for each round}; every second round goes backwards."""
    seen = {name: [] for name in names}
    for i in range(rounds):
        for name in (names if i % 2 == 0 else names[::-1]): seen[name].append(measure(name))
    return seen


def against(seen, base):
    """For each name: the median, the median of the per-round ratios to `base`, half of (highest - lowest) of those."""
    values = {}
    for name, rows in seen.items():
        ratios = [r / b for r, b in zip(rows, seen[base])]
        values[name] = {"value": statistics.median(rows), "ratio": statistics.median(ratios), "spread": (max(ratios) - min(ratios)) / 2, "per_round": rows}
    return values


def against_floor(seen): return against(seen, servers.FLOOR)


def judge(what, values, own, target):
    """The verdict on a ratio to the floor that may be at most `target`."""
    ratio, noise = values[own]["ratio"], values[AGAIN]["spread"]
    word = "INCONCLUSIVE" if noise > target - 1 else "PASS" if ratio <= target else "FAIL"
    return word, f"{own}: {ratio:.3f} x the floor's {what}, target <= {target}; floor against itself +- {noise:.3f}"


def peers(options, without=()):
    """The peers that are asked for."""
    names = options.peers if options.peers is not None else [n for n in servers.PROGRAMS if n != servers.FLOOR]
    return [n for n in names if n not in without]


def command(name): return servers.command(servers.FLOOR if name == AGAIN else name)
