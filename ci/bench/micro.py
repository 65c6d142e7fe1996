"""What B10 and B11 share: the program ci/bench/micro, and callgrind with two counts subtracted."""
import re, shutil, subprocess

import servers

# A directory of its own, as the peers have.
TARGET = servers.TARGET / "bench-micro"
PROGRAM = TARGET / "release/micro"


def build():
    # Not --locked: epoxide is part of it by path, and its dependencies may have changed.
    subprocess.run(["cargo", "build", "--release", "--manifest-path", str(servers.ROOT / "ci/bench/micro/Cargo.toml"),
                    "--target-dir", str(TARGET)], cwd=servers.ROOT, check=True)


def has_valgrind():
    if shutil.which("valgrind"): return True
    print("instructions: valgrind is missing, not measured (ci/setup)")
    return False


def collected(runtime, workload, n):
    p = subprocess.run(["valgrind", "--tool=callgrind", "--max-threads=2000", "--callgrind-out-file=/dev/null", str(PROGRAM), runtime, workload, str(n)],
                       stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=600)
    found = re.search(r"Collected : (\d+)", p.stderr)
    if p.returncode or not found: raise SystemExit(f"micro {runtime} {workload} {n} failed:\n{p.stderr[-2000:]}")
    return int(found[1])


def per_item(runtime, workload, few, many):
    """User-space instructions of one: the difference of two runs, so that the start cancels out."""
    return (collected(runtime, workload, many) - collected(runtime, workload, few)) / (many - few)


def table(workloads, runtimes, few, many, report):
    """Measures and prints; {workload: {runtime: instructions}}."""
    width = max(len(w) for w in workloads)
    print(f"user-space instructions of each, {few} and {many} of them subtracted")
    print(f"{'':{width}} " + " ".join(f"{r:>15}" for r in runtimes), flush=True)
    rows = {}
    for workload, what in workloads.items():
        rows[workload] = {r: per_item(r, workload, few, many) for r in runtimes}
        print(f"{workload:{width}} " + " ".join(f"{v:15.0f}" for v in rows[workload].values()) + f"   {what}", flush=True)
    report["instructions"] = rows
    return rows


def judge(rows, workloads, rivals):
    """One verdict for each workload and rival: at most as many instructions."""
    verdicts = []
    for workload, what in workloads.items():
        own = rows[workload]["epoxide"]
        for rival in rivals:
            theirs = rows[workload][rival]
            verdicts.append(("PASS" if own <= theirs else "FAIL", f"{what}: {own:.0f} instructions, {rival} {theirs:.0f}"))
    return verdicts
