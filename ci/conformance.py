#!/usr/bin/env python3
"""Clients of other people's making against the WebSocket samples, beyond what ci/clients.py has on every machine.

usage: ci/conformance.py [suite] [hub] [browser]     (all three)

suite    the cases of the Autobahn suite, by the PyPI package kosoku (the suite's own runner needs Python 2), against the
         echo of axum_app. An answer that the suite calls non-strict counts as good, as it does there.
hub      1024 members of ws_hub by the PyPI package websockets: every byte of 8 KiB messages from four of them, in one order.
browser  Chromium loads the page of axum_app and uses all of it; the picture is written to be looked at.

The packages are installed into target/conformance; Chromium is Debian's package `chromium`. Counts answers, never speed."""
import argparse, asyncio, base64, json, pathlib, re, shutil, subprocess, sys, tempfile, time, urllib.request

sys.dont_write_bytecode = True  # the checkout stays clean
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import clients
from clients import ROOT, check, sample

PLACE = ROOT / "target/conformance"
PACKAGES = ["kosoku==0.1.0", "websockets>=13"]
PYTHON = PLACE / "venv/bin/python3"
MEMBERS, PUBLISHERS, EACH, LENGTH = 1024, 4, 6, 8192


def suite(addr):
    """All cases, one after the other: the last ones measure how long many messages take, and may not disturb each other."""
    reports = PLACE / "reports"
    shutil.rmtree(reports, ignore_errors=True)
    done = subprocess.run([PYTHON.parent / "kosoku", "-m", "fuzzingclient", "-o", reports, f"ws://{addr}/ws"], capture_output=True, text=True, timeout=1800)
    index = next(reports.rglob("index.json"), None)
    if index is None: return check("Autobahn: a report", False, (done.stdout + done.stderr)[-2000:])
    cases = next(iter(json.loads(index.read_text()).values()))
    counts = {}
    for case, told in cases.items():
        for what in ("behavior", "behaviorClose"):
            counts.setdefault(told[what], []).append(case)
    bad = {kind: cases for kind, cases in counts.items() if kind not in ("OK", "NON-STRICT", "INFORMATIONAL", "UNIMPLEMENTED")}
    for kind in sorted(counts): print(f"       {kind}: {len(set(counts[kind]))} cases")
    check(f"Autobahn: {len(cases)} cases", len(cases) > 300 and not bad, bad)
    # Compression is an extension that the sample does not offer.
    check("Autobahn: only compression is not offered", all(case.startswith(("12.", "13.")) for case in counts.get("UNIMPLEMENTED", [])), counts.get("UNIMPLEMENTED"))


def payload(publisher, seq):
    start = publisher * 41 + seq * 7
    return bytes([publisher]) + seq.to_bytes(4, "big") + bytes((start + j * 3) & 255 for j in range(5, LENGTH))


async def members(addr):
    """Every member's log of (publisher, number); a corrupt message raises."""
    from websockets.asyncio.client import connect
    all_of_them, logs = [], [[] for _ in range(MEMBERS)]
    for _ in range(MEMBERS): all_of_them.append(await connect(f"ws://{addr}/ws", compression=None, ping_interval=None, max_size=1 << 20, proxy=None))
    # A pong comes from a member.
    for pong in [await member.ping() for member in all_of_them]: await asyncio.wait_for(pong, 60)
    known = {payload(p, s): (p, s) for p in range(PUBLISHERS) for s in range(EACH)}

    async def read(member, log):
        for _ in range(PUBLISHERS): log.append(known[await asyncio.wait_for(member.recv(), 120)])
    for seq in range(EACH):
        # One of each publisher before the next: nobody falls behind further than that.
        await asyncio.gather(*(all_of_them[p].send(payload(p, seq)) for p in range(PUBLISHERS)), *map(read, all_of_them, logs))
    for member in all_of_them: await asyncio.wait_for(member.close(), 60)
    return logs, {member.close_code for member in all_of_them}


def hub(addr):
    logs, codes = asyncio.run(members(addr))
    everything = sorted((p, s) for p in range(PUBLISHERS) for s in range(EACH))
    check(f"ws_hub: {MEMBERS} members have all {len(everything)} messages of {LENGTH} bytes, every byte", all(sorted(log) == everything for log in logs))
    check("ws_hub: one order for all", all(log == logs[0] for log in logs))
    check("ws_hub: the closes are answered with 1000", codes == {1000}, codes)


async def drive(page, picture):
    """Clicks through the page by the DevTools protocol, and takes its picture. What the page shows."""
    from websockets.asyncio.client import connect
    async with connect(page, max_size=1 << 26, proxy=None) as tools:
        number = 0

        async def call(method, **params):
            nonlocal number
            number += 1
            await tools.send(json.dumps({"id": number, "method": method, "params": params}))
            while (answer := json.loads(await asyncio.wait_for(tools.recv(), 60))).get("id") != number: pass
            return answer["result"]

        async def value(script): return (await call("Runtime.evaluate", expression=script, returnByValue=True))["result"].get("value")

        async def until(script):
            for _ in range(600):
                if await value(script): return True
                await asyncio.sleep(.05)
            return False
        opened = await until("document.getElementById('state')?.textContent == 'open'")
        await value("document.querySelector('form button').click(), document.getElementById('ask').click(), document.getElementById('stream').click()")
        echoed = await until("document.getElementById('log').textContent.includes('< hello')")
        summed = await until("document.getElementById('sum').textContent.includes('6')")
        streamed = await until("document.getElementById('lines').textContent.includes('line 9')")
        shot = await call("Page.captureScreenshot", format="png")
        picture.write_bytes(base64.b64decode(shot["data"]))
        return opened, echoed, summed, streamed


def browser(addr):
    chromium = shutil.which("chromium")
    if not chromium: return check("Chromium is installed (Debian's package chromium)", False)
    picture = PLACE / "axum_app.png"
    with tempfile.TemporaryDirectory() as profile:
        p = subprocess.Popen([chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=800,1200", f"--user-data-dir={profile}",
                              "--remote-debugging-port=0", f"http://{addr}/"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            port = next((found[1] for line in p.stderr if (found := re.search(r"DevTools listening on ws://127\.0\.0\.1:(\d+)/", line))), None)
            pages = []
            for _ in range(200):
                pages = [x for x in json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/json")) if x["type"] == "page" and addr in x["url"]]
                if pages: break
                time.sleep(.1)  # the page has no signal for this process
            told = asyncio.run(drive(pages[0]["webSocketDebuggerUrl"], picture))
        finally:
            p.kill()
            p.wait()
    for what, ok in zip(("the WebSocket opens", "its echo arrives", "JSON is answered", "the streamed body arrives whole"), told): check(f"Chromium: {what}", ok)
    print(f"       the picture: {picture.relative_to(ROOT)}")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("parts", nargs="*", help="suite, hub, browser")
    parts = ap.parse_args().parts or ["suite", "hub", "browser"]
    unknown = set(parts) - {"suite", "hub", "browser"}
    if unknown: ap.error(f"no such part: {', '.join(unknown)}")
    if sys.prefix != str(PLACE / "venv"):
        subprocess.run([sys.executable, "-m", "venv", PLACE / "venv"], check=True)
        subprocess.run([PYTHON, "-m", "pip", "install", "-q", "--disable-pip-version-check", *PACKAGES], check=True)
        raise SystemExit(subprocess.run([PYTHON, __file__, *parts]).returncode)
    subprocess.run(["cargo", "build", "-p", "epoxide-samples", "--features", "http", "--bin=axum_app", "--bin=ws_hub"], cwd=ROOT, check=True)
    if "suite" in parts:
        with sample("axum_app", "--max-frame", str(32 << 20)) as addr: suite(addr)
    if "hub" in parts:
        with sample("ws_hub", "--sequenced", "--backlog", "16384") as addr: hub(addr)
    if "browser" in parts:
        with sample("axum_app") as addr: browser(addr)
    print(f"conformance: {clients.checks - len(clients.failures)} of {clients.checks} checks passed")
    if clients.failures: sys.exit("failed: " + "; ".join(clients.failures))


if __name__ == "__main__": main()
