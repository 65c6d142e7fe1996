#!/usr/bin/env python3
"""Real clients against the HTTP samples: curl (HTTP/1, HTTP/2), wrk, h2load, and a WebSocket's frames byte by byte; and
the same over TLS, with Python's ssl under the WebSocket.

usage: ci/clients.py [--seconds N]

Builds the samples with the features `http` and `tls` (BoringSSL: ci/setup) and starts each on a port of the kernel's choice. Every check counts answers
and bytes, never speed. The WebSocket part follows the groups of the Autobahn suite (whose own
cases ci/conformance.py runs): framing, pings, reserved bits, opcodes, fragments, UTF-8, closing, limits. What a machine lacks is named
and fails; ci/setup installs it."""
import argparse, base64, contextlib, hashlib, os, pathlib, re, shutil, signal, socket, ssl, struct, subprocess, sys, tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
failures, checks = [], 0
CURL = ()


def check(what, ok, seen=""):
    global checks
    checks += 1
    print(f"{'ok    ' if ok else 'FAILED'} {what}{'' if ok else f': {seen!r}'}", flush=True)
    if not ok: failures.append(what)


@contextlib.contextmanager
def sample(name, *args):
    """A running sample; afterwards it must drain in good order."""
    command = [TARGET / "debug" / name, "--addr", "127.0.0.1", "--port", "0", "--reactors", "2", *args]
    with tempfile.TemporaryFile("w+") as errors:
        p = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            line = p.stdout.readline()
            found = re.search(r"127\.0\.0\.1:\d+", line)
            if not found: raise SystemExit(f"{name} did not start: {line!r}")
            yield found[0]
            p.send_signal(signal.SIGINT)
            rest, _ = p.communicate(timeout=40)
            check(f"{name}: Ctrl-C drains, nothing is cut", p.returncode == 0 and " 0 connections cut" in rest, rest[:200])
        finally:
            if p.poll() is None: p.kill()
            p.wait()


def run(*command, **options):
    """What a client prints; `timeout` bounds it."""
    done = subprocess.run(command, capture_output=True, timeout=120, **options)
    return done.returncode, done.stdout, done.stderr.decode(errors="replace")


def with_curl(addr, versions):
    body = bytes(i % 251 for i in range(3_000_000))
    for flag, version in versions:
        code, out, err = run("curl", "-sS", flag, "-w", "\n%{http_version} %{http_code}", f"http://{addr}/")
        check(f"curl {flag}: GET", out == f"ok\n{version} 200".encode(), (code, out, err))
        code, out, err = run("curl", "-sS", flag, "--data-binary", "@-", f"http://{addr}/echo", input=body)
        check(f"curl {flag}: 3 MB up and down", out == body, (code, len(out), err))
        chunked = ("-H", "transfer-encoding: chunked") if version != "2" else ()
        code, out, err = run("curl", "-sS", flag, "-T", "-", *chunked, f"http://{addr}/echo", input=body)
        check(f"curl {flag}: a body of unknown length", out == body, (code, len(out), err))
        code, out, err = run("curl", "-sS", flag, "-H", "expect: 100-continue", "-d", "continued", f"http://{addr}/echo")
        check(f"curl {flag}: Expect", out == b"continued", (code, out, err))
        if version == "2" and CURL < (8,):
            print(f"skip   curl {flag}: 20 requests on one connection (curl pull request 10643: broken before 8.0)")
            continue
        urls = [f"http://{addr}/"] * 20
        code, out, err = run("curl", "-sSv", flag, *urls)
        check(f"curl {flag}: 20 requests on one connection", out == b"ok" * 20 and err.count("Connected to") == 1, (code, out))


def with_wrk(addr, seconds):
    code, out, err = run("wrk", "-t2", "-c64", f"-d{seconds}s", f"http://{addr}/")
    out = out.decode()
    requests = int(found[1]) if (found := re.search(r"(\d+) requests in", out)) else 0
    clean = "Socket errors" not in out and "Non-2xx" not in out
    check(f"wrk: {requests} requests on 64 connections, no error", code == 0 and requests > 100 and clean, out + err)


def with_h2load(url):
    scheme = url.split(":")[0]
    code, out, err = run("h2load", "-n", "20000", "-c", "16", "-m", "64", url)
    check(f"h2load, {scheme}: 20000 requests on 16 connections of 64 streams", code == 0 and b"20000 succeeded, 0 failed, 0 errored" in out, out)
    code, out, err = run("h2load", "--h1", "-n", "5000", "-c", "16", url)
    check(f"h2load, {scheme}: the same over HTTP/1", code == 0 and b"5000 succeeded, 0 failed, 0 errored" in out, out)
    if scheme == "https": check("h2load: TLS 1.3 was spoken", b"TLS Protocol: TLSv1.3" in out, out)


def with_curl_tls(addr, certs):
    """The application of axum_app, in each version by what curl offers (ALPN)."""
    port = addr.split(":")[1]
    trust = ("--cacert", f"{certs}/ca.pem", "--resolve", f"localhost:{port}:127.0.0.1")
    url = f"https://localhost:{port}"
    for flag, version in (("--http1.1", "1.1"), ("--http2", "2")):
        for tls in ("--tlsv1.3", "--tls-max=1.2"):
            flags = (flag, *tls.split("="), *trust)
            code, out, err = run("curl", "-sS", *flags, "-w", "\n%{http_version} %{http_code}", f"{url}/api/hello")
            check(f"curl {flag} {tls}: JSON", out == f'{{"hello":"world"}}\n{version} 200'.encode(), (code, out, err))
        flags = (flag, *trust)
        numbers = ",".join(["1"] * 100_000)
        code, out, err = run("curl", "-sS", *flags, "-H", "content-type: application/json", "--data-binary", "@-", f"{url}/api/sum",
                             input=f'{{"numbers":[{numbers}]}}'.encode())
        check(f"curl {flag}: 200 KB up over TLS", out == b'{"sum":100000.0}', (code, out, err))
        code, out, err = run("curl", "-sSN", *flags, f"{url}/stream")
        check(f"curl {flag}: a streamed body over TLS", out.count(b"\n") == 10, (code, out, err))
        code, out, err = run("curl", "-sS", flag, f"{url}/", *trust[2:])
        check(f"curl {flag}: an unknown authority is refused by curl", code == 60, (code, out, err))
    code, out, err = run("curl", "-sS", "--http1.1", *trust, f"{url}/ws", "-w", "%{http_code}")
    check("curl: no WebSocket is asked for", out == b"426", (code, out, err))


def with_hub_tls(addr, context):
    a, b = WebSocket(addr, context), WebSocket(addr, context)
    # A member for certain: it is answered from within the hub.
    for ws in (a, b): check("wss: a ping is answered", ws.send(PING, b"in?").receive() == (PONG, b"in?"))
    for i, payload in enumerate((b"to all", b"x" * 300_000, b"")):
        (a, b)[i % 2].send(BINARY, payload)
        check(f"wss: {len(payload)} bytes reach both members", [a.receive(), b.receive()] == [(BINARY, payload)] * 2)
    for i in range(200): (a, b)[i % 2].send(TEXT, b"%d" % i)
    for name, ws in (("one", a), ("the other", b)):
        got = [ws.receive() for _ in range(200)]
        check(f"wss: 200 messages of two members reach {name}", sorted(int(p) for _, p in got) == list(range(200)), got[:5])
    for ws in (a, b):
        got = ws.send(CLOSE, struct.pack(">H", 1000)).until_end()
        check("wss: closing is answered in kind, then close_notify", got == [(8, 1000)] and not ws.cut, (got, ws.cut))


class WebSocket:
    """A client that may break every rule."""
    def __init__(self, addr, context=None):
        host, port = addr.split(":")
        self.s = socket.create_connection((host, int(port)), 20)
        # An end without a close_notify is an error, and fails the check.
        if context: self.s = context.wrap_socket(self.s, server_hostname="localhost", suppress_ragged_eofs=False)
        key = base64.b64encode(os.urandom(16)).decode()
        self.s.sendall(f"GET /ws HTTP/1.1\r\nHost: {addr}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                       f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode())
        self.f, self.cut = self.s.makefile("rb"), None
        head = b""
        while not head.endswith(b"\r\n\r\n"): head += self.f.read(1)
        accept = base64.b64encode(hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest())
        assert head.startswith(b"HTTP/1.1 101") and accept in head, head

    def send(self, opcode, payload=b"", fin=True, reserved=0, mask=True, piece=None):
        n, first = len(payload), (0x80 if fin else 0) | reserved << 4 | opcode
        size = bytes([n]) if n < 126 else b"\x7e" + struct.pack(">H", n) if n < 65536 else b"\x7f" + struct.pack(">Q", n)
        head = bytes([first, size[0] | (0x80 if mask else 0)]) + size[1:]
        if mask:
            key = os.urandom(4)
            whole = (key * (n // 4 + 1))[:n]
            payload = key + (int.from_bytes(payload, "big") ^ int.from_bytes(whole, "big")).to_bytes(n, "big")
        data = head + payload
        step = piece or len(data)
        try:
            for i in range(0, len(data), step): self.s.sendall(data[i:i + step])
        except OSError: pass  # the server may have closed before it had all
        return self

    def receive(self):
        """(opcode, payload); a close is (8, code), the end None."""
        try:
            head = self.f.read(2)
            if len(head) < 2: return None
            n = head[1] & 0x7f
            if n > 125: n = int.from_bytes(self.f.read(2 if n == 126 else 8), "big")
            payload = self.f.read(n)
        except ConnectionError: return None
        except ssl.SSLError as error:
            # No close_notify.
            self.cut = str(error)
            return None
        if head[0] & 0xf == 8: return 8, int.from_bytes(payload[:2], "big") if payload else None
        return head[0] & 0xf, payload

    def until_end(self):
        got = []
        while (frame := self.receive()) is not None: got.append(frame)
        self.s.close()
        return got


TEXT, BINARY, CLOSE, PING, PONG, MORE = 1, 2, 8, 9, 10, 0


def with_frames(addr, context=None):
    name = "wss" if context else "WebSocket"
    connect = lambda: WebSocket(addr, context)
    def closed(what, ws, codes, before=()):
        got = ws.until_end()
        ends = got[len(before):]
        check(f"{name}: {what}", not ws.cut and got[:len(before)] == list(before) and (not ends or ends[0][0] == 8 and ends[0][1] in codes), (got, ws.cut))
    ws = connect()
    for kind in (TEXT, BINARY):
        for n in (0, 1, 125, 126, 127, 128, 65535, 65536, 1_000_000):
            payload = b"*" * n
            check(f"{name}: a frame of {n} bytes, opcode {kind}", ws.send(kind, payload).receive() == (kind, payload))
    check(f"{name}: a frame in pieces of 997 bytes", ws.send(BINARY, b"x" * 65536, piece=997).receive() == (BINARY, b"x" * 65536))
    check(f"{name}: a ping is answered with its payload", ws.send(PING, b"p" * 125).receive() == (PONG, b"p" * 125))
    ws.send(PONG, b"nobody asked")
    for i in range(10): ws.send(PING, b"%d" % i)
    check(f"{name}: ten pings, ten pongs in order", [ws.receive() for _ in range(10)] == [(PONG, b"%d" % i) for i in range(10)])
    ws.send(TEXT, b"frag", fin=False).send(PING, b"between").send(MORE, b"ment", fin=False).send(MORE, b"ed")
    check(f"{name}: fragments with a ping between them", [ws.receive(), ws.receive()] == [(PONG, b"between"), (TEXT, b"fragmented")])
    text = "κόσμε €𐍈".encode()
    for i in range(len(text)): ws.send(TEXT if i == 0 else MORE, text[i:i + 1], fin=i == len(text) - 1)
    check(f"{name}: characters cut across fragments", ws.receive() == (TEXT, text))
    closed("closing is answered in kind", ws.send(CLOSE, struct.pack(">H", 1000) + b"bye"), {1000})
    for reserved in (1, 2, 4): closed(f"reserved bits {reserved}", connect().send(TEXT, b"x", reserved=reserved), {1002})
    for opcode in (3, 4, 5, 6, 7, 11, 12, 13, 14, 15): closed(f"opcode {opcode}", connect().send(opcode, b"x"), {1002})
    closed("a ping of 126 bytes", connect().send(PING, b"x" * 126), {1002})
    closed("a ping in fragments", connect().send(PING, b"x", fin=False), {1002})
    closed("a frame without a mask", connect().send(TEXT, b"x", mask=False), {1002})
    closed("a continuation of nothing", connect().send(MORE, b"x"), {1002})
    closed("a text inside of fragments", connect().send(TEXT, b"x", fin=False).send(TEXT, b"y"), {1002})
    for bad in (b"\xff", b"\xce\xba\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\xaf", b"cut \xe2\x82"):
        closed(f"text that is no UTF-8: {bad!r}", connect().send(TEXT, bad), {1007})
    closed("a message behind good ones keeps them", connect().send(TEXT, b"good").send(TEXT, b"\xff"), {1007}, [(TEXT, b"good")])
    for code in (0, 999, 1004, 1005, 1006, 1016, 2999, 5000, 65535):
        closed(f"close code {code}", connect().send(CLOSE, struct.pack(">H", code)), {1002})
    for code in (1001, 1003, 1007, 1011, 3000, 4999):
        closed(f"close code {code}", connect().send(CLOSE, struct.pack(">H", code)), {code})
    closed("a close frame of one byte", connect().send(CLOSE, b"\x03"), {1002})
    closed("a close reason that is no UTF-8", connect().send(CLOSE, struct.pack(">H", 1000) + b"\xff"), {1002, 1007})
    closed("a message past the limit", connect().send(BINARY, b"x" * (1 << 21)), {1009})
    ws = connect()
    for _ in range(40): ws.send(MORE if _ else BINARY, b"x" * 65536, fin=False)
    closed("fragments past the limit", ws, {1009})


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--seconds", type=int, default=2, help="of wrk's load (2)")
    options = ap.parse_args()
    missing = [tool for tool in ("cargo", "curl", "wrk", "h2load") if not shutil.which(tool)]
    if missing: sys.exit(f"clients: {', '.join(missing)} missing: run ci/setup")
    global CURL
    CURL = tuple(map(int, re.search(rb"curl (\d+)\.(\d+)", run("curl", "--version")[1]).groups()))
    names = ("http1", "http2", "axum_app", "proxy", "https_axum", "wss_hub")
    built = ROOT / "target" / "boringssl"
    if "BORING_BSSL_PATH" not in os.environ and (built / "version").is_file():  # as ci/lib.sh does
        os.environ |= {"BORING_BSSL_PATH": str(built), "BORING_BSSL_ASSUME_PATCHED": "1"}
    subprocess.run(["cargo", "build", "-p", "epoxide-samples", "--features", "http,tls", *(f"--bin={n}" for n in names)], cwd=ROOT, check=True)
    one, two = ("--http1.1", "1.1"), ("--http2-prior-knowledge", "2")
    with sample("http1") as addr:
        with_curl(addr, [one])
        with_wrk(addr, options.seconds)
        with sample("proxy", "--http", "--to", addr) as front:
            with_curl(front, [one])
            with_wrk(front, options.seconds)
    with sample("http2") as addr:
        with_curl(addr, [one, two])
        with_h2load(f"http://{addr}/")
    with sample("axum_app") as addr:
        code, out, err = run("curl", "-sS", f"http://{addr}/api/hello")
        check("curl: JSON from axum_app", out == b'{"hello":"world"}', (code, out, err))
        code, out, err = run("curl", "-sSN", "--http2-prior-knowledge", f"http://{addr}/stream")
        check("curl: a streamed body from axum_app", out.count(b"\n") == 10, (code, out, err))
        with_frames(addr)
    with tempfile.TemporaryDirectory() as certs:
        subprocess.run(["bash", ROOT / "ci" / "certs", certs], check=True, stdout=subprocess.DEVNULL)
        context = ssl.create_default_context(cafile=f"{certs}/ca.pem")
        with sample("https_axum", "--certs", certs) as addr:
            with_curl_tls(addr, certs)
            with_h2load(f"https://{addr}/api/hello")
            with_frames(addr, context)
        with sample("wss_hub", "--certs", certs) as addr: with_hub_tls(addr, context)
    print(f"clients: {checks - len(failures)} of {checks} checks passed")
    if failures: sys.exit("failed: " + "; ".join(failures))


if __name__ == "__main__": main()
