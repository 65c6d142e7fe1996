"""HYPER: keep-alive GET through hyper. User-space instructions per request of the sample `http1` beside hyper on tokio
(ci/bench/hyper_tokio), with peers/instr.py as it is."""
import shutil, subprocess

import b1, chart, servers

MAX_RATIO = 1.0
PEER = servers.ROOT / "ci/bench/hyper_tokio"


def run(options, report):
    if not shutil.which("valgrind"):
        print("instructions: valgrind is missing, not measured (ci/setup)"); return None
    servers.build(["http1"], "http")
    subprocess.run(["cargo", "build", "--release", "--locked", "--target-dir", str(servers.PEERS_TARGET)], cwd=PEER, check=True)
    text, _ = b1.tool("instr.py", ["-c", "8", f"hyper_tokio={servers.PEERS_TARGET}/release/hyper_tokio {{addr}}",
                                   f"http1={servers.sample('http1')} --addr {{addr}} --reactors 1 --body bench"])
    values = dict(b1.figures(text))
    report["instructions_per_request"] = {"connections": 8, "values": values}
    chart.bars(servers.OUT / "HYPER-instructions.svg", "user-space instructions per keep-alive request through hyper (fewer is better)", "",
               [(n, [("instructions", v)]) for n, v in values.items()], digits=0)
    ratio = values["http1"] / values["hyper_tokio"]
    return [("PASS" if ratio <= MAX_RATIO else "FAIL", f"http1: {ratio:.2f} x hyper on tokio's instructions/request, target <= {MAX_RATIO}")]
