"""What is measured and how it is built: our samples `raw` and `pipe`, the floor and the peers."""
import os, pathlib, socket, subprocess, time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
OUT = ROOT / "target/bench"
PEERS = ROOT / "ci/bench/peers"
# Where cargo builds, as it does: CARGO_TARGET_DIR counts from the directory that cargo runs in.
TARGET = ROOT / os.environ.get("CARGO_TARGET_DIR", "target")
# A directory of their own: users of the crate never build the peers.
PEERS_TARGET = TARGET / "bench-peers"

# Name -> program. Peers that use io_uring cannot run under valgrind.
FLOOR = "floor"
PROGRAMS = {"floor": "raw_epoll", "tokio_ct": "tokio_ct", "tokio_mt": "tokio_mt", "monoio_epoll": "monoio_epoll",
            "monoio_uring": "monoio_uring", "compio_uring": "compio_uring", "may": "may_co", "smol": "smol_st"}
URING = {"monoio_uring", "compio_uring"}


# Our samples. `raw` is what the targets are about.
OWN = ["raw", "pipe"]


def build(samples, features="", env=None):
    subprocess.run(["cargo", "build", "--release", "-p", "epoxide-samples", "--target-dir", str(TARGET), f"--features={features}"]
                   + [f"--bin={name}" for name in samples], cwd=ROOT, check=True, env=env)


def sample(name): return f"{TARGET}/release/{name}"


def build_own(): build(OWN)


def build_peers():
    subprocess.run(["cargo", "build", "--release", "--locked", "--bins", "--manifest-path", str(PEERS / "Cargo.toml"),
                    "--target-dir", str(PEERS_TARGET)], cwd=ROOT, check=True)


def command(name):
    """The command line of a server, with {addr} where the address goes."""
    if name in OWN:
        # One reactor against one core; `--body bench` answers the same bytes as the peers.
        return f"{sample(name)} --addr {{addr}} --reactors 1 --body bench"
    return f"{PEERS_TARGET}/release/{PROGRAMS[name]} {{addr}}"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def answer(name):
    """The bytes that a server sends for two pipelined requests; whatever came within 10 s."""
    port = free_port()
    p = subprocess.Popen(command(name).replace("{addr}", f"127.0.0.1:{port}").split(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(200):
            try: s = socket.create_connection(("127.0.0.1", port), 10); break
            except OSError: time.sleep(.05)
        else: raise SystemExit(f"{name}: does not listen on port {port}")
        with s:
            s.sendall(2 * b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            s.shutdown(socket.SHUT_WR)  # its FIN ends the loop below
            got = b""
            try:
                while part := s.recv(65536): got += part
            except OSError: pass  # a reset or the time limit: what came is compared
            return got
    finally:
        p.terminate(); p.wait()


def same_answers(names):
    """Servers that send other bytes are not comparable."""
    first = answer(names[0])
    if not first: raise SystemExit(f"{names[0]}: no answer")
    for name in names[1:]:
        if (got := answer(name)) != first: raise SystemExit(f"{name} answers {got!r}, {names[0]} {first!r}: not comparable")
