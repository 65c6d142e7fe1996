"""The overview of `run all`: every measured figure as a ratio to its target, with the floor and the best peer, as one SVG and
as a table. Reads the JSON that the workloads have written; what they do not give as rows themselves is picked out here."""
import json, re
from html import escape

import b1, b5, servers

MET, MISSED, UNSURE, PEER, FLOOR = "#4d9a5b", "#c8503c", "#9a9a9a", "#2f6f9f", "#222"
LONGEST = 2.0  # of the target: longer bars are cut, and end in an arrow


def row(what, value, target, floor=None, peer=None, verdict=None, more=False):
    """`more`: more is better. `verdict`: where the spread decides too."""
    return {"what": what, "value": value, "target": target, "floor": floor, "peer": peer, "verdict": verdict, "more": more}


def rivals(values, without): return [v for n, v in values.items() if n not in without]


def of_b1(r):
    if found := r.get("instructions_per_request"):
        v = found["values"]
        peer = min(rivals(v, (servers.FLOOR, *servers.OWN)), default=None)
        yield row("instructions per request, raw", v["raw"], b1.MAX_INSTRUCTIONS, v[servers.FLOOR], peer)
        yield row("instructions per request, pipe", v["pipe"], b1.MAX_PIPE_INSTRUCTIONS, v[servers.FLOOR], peer)
    if found := r.get("throughput"):
        v = {n: x["ratio_to_floor"] for n, x in found["values"].items()}
        verdict = next((word for word, text in r["verdicts"] if "x the floor's requests/s" in text), None)
        yield row("requests/s, x floor", v["raw"], b1.MIN_RATIO, 1.0, max(rivals(v, (servers.FLOOR, b1.AGAIN, *servers.OWN)), default=None), verdict, more=True)


def of_b3(r):
    each = {n: sum(x["per_request"][k] for k in ("recv", "send")) for n, x in r["servers"].items()}
    yield row("recv and send per request", each["raw"], 2.02, each.get(servers.FLOOR), min(rivals(each, ("raw", servers.FLOOR)), default=None))


def of_b4(r):
    if v := r.get("instructions_per_request"):
        yield row("instructions per request on workers, x tokio", v["threadpool"] / v["tokio_mt"], 1.0)
        yield row("the same, x posting to the reactor", v["threadpool"] / v["funnel"], 1.0)
    if v := r.get("cpu"):
        verdict = next((word for word, text in r["verdicts"] if "CPU per request of tokio_mt" in text), None)
        yield row("CPU per request on workers, x tokio", v["tokio_mt"]["ours_to_it"], 1.0, verdict=verdict)


def of_b5(r):
    for rival, target in (("funnel", b5.FUNNEL), ("tokio", b5.TOKIO)):
        worst = max(x["epoxide"]["instructions"] / x[rival]["instructions"] for x in r["rows"].values())
        yield row(f"instructions per delivery, x {rival}, at worst", worst, target)
    yield row("syscalls per delivery, at worst", max(x["epoxide"]["syscalls"] for x in r["rows"].values()), 1.01)


def of_instructions(r):
    """B10, B11, B14: at most as many as the best of the others."""
    for what, values in r.get("instructions", {}).items():
        yield row(f"instructions: {what}, x the best peer", values["epoxide"] / min(rivals(values, ("epoxide",))), 1.0)


def of_b12(r):
    """Out of the text of its verdicts, which have the ratios."""
    for verdict, text in r["verdicts"]:
        if m := re.match(r"(CPU per .*?): ([\d.]+) x (\w+), target <= ([\d.]+)", text):
            yield row(f"{m[1]}, x {m[3]}", float(m[2]), float(m[4]), verdict=verdict)
        elif m := re.match(r"(instructions per .*?): \d+, (\w+) \d+ \(([\d.]+) x\)", text):
            yield row(f"{m[1]}, x {m[2]}", float(m[3]), 1.0, verdict=verdict)


def of_hyper(r):
    v = r["instructions_per_request"]["values"]
    yield row("instructions per request, x hyper on tokio", v["http1"] / v["hyper_tokio"], 1.0)


PICKED = {"B1": of_b1, "B3": of_b3, "B4": of_b4, "B5": of_b5, "B10": of_instructions, "B11": of_instructions, "B12": of_b12, "B14": of_instructions, "HYPER": of_hyper}


def rows_of(report):
    """Its rows; those without figures are its verdicts alone."""
    found = report.get("overview") or (list(PICKED[report["workload"]](report)) if report["workload"] in PICKED else [])
    rows = [row(**{k: v for k, v in each.items()}) for each in found]
    for each in rows:
        met = each["value"] >= each["target"] if each["more"] else each["value"] <= each["target"]
        each["verdict"] = each["verdict"] or ("PASS" if met else "FAIL")
    return rows


def number(x): return f"{x:.0f}" if x >= 100 else f"{x:.2f}" if x >= 1 or x == 0 else f"{x:.3f}"


def scaled(each, x):
    """As a share of the target, less is better."""
    if x is None: return None
    share = each["target"] / x if each["more"] and x else x / each["target"]
    return min(share, LONGEST)


def draw(path, groups, foot):
    """groups: (id, what, rows, reason why there are none)"""
    left, width, line, head = 400, 300, 21, 74
    x_of = lambda share: left + width * share / LONGEST
    lines = sum(1 + max(1, len(rows)) for _, _, rows, _ in groups)
    height = head + lines * line + 34
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1030 {height}" font-family="sans-serif" font-size="13" fill="#222">',
           f'<rect width="1030" height="{height}" fill="#fff"/>',
           '<text x="14" y="26" font-size="17" font-weight="bold">epoxide against its targets: the shorter the better, left of the line is met</text>']
    x = 14
    for colour, text in ((MET, "met"), (MISSED, "missed"), (UNSURE, "the spread is too wide to tell")):
        out.append(f'<rect x="{x}" y="40" width="12" height="12" fill="{colour}"/><text x="{x + 17}" y="51">{text}</text>')
        x += 36 + 7 * len(text)
    out.append(f'<path d="M{x + 6} 38v16" stroke="{FLOOR}" stroke-width="3"/><text x="{x + 14}" y="51">floor: a loop without any runtime</text>')
    x += 240
    out.append(f'<circle cx="{x + 6}" cy="46" r="5" fill="#fff" stroke="{PEER}" stroke-width="2.5"/><text x="{x + 17}" y="51">best peer</text>')
    y = head
    for name, what, rows, reason in groups:
        out.append(f'<text x="14" y="{y + 15}" font-weight="bold">{escape(name)}</text><text x="78" y="{y + 15}" font-weight="bold">{escape(what)}</text>')
        y += line
        if not rows: out.append(f'<text x="78" y="{y + 14}" fill="#777">{escape(reason.split(". ")[0])}</text>')
        for each in rows:
            colour = {"PASS": MET, "FAIL": MISSED}.get(each["verdict"], UNSURE)
            share = scaled(each, each["value"])
            end = max(left + 1, x_of(share))
            out.append(f'<text x="78" y="{y + 14}">{escape(each["what"])}</text>')
            out.append(f'<rect x="{left}" y="{y + 3}" width="{end - left:.1f}" height="14" fill="{colour}"/>')
            if share == LONGEST: out.append(f'<path d="M{end} {y}l11 10l-11 10z" fill="{colour}"/>')
            if each["floor"] is not None: out.append(f'<path d="M{x_of(scaled(each, each["floor"])):.1f} {y + 1}v18" stroke="{FLOOR}" stroke-width="3"/>')
            if each["peer"] is not None: out.append(f'<circle cx="{x_of(scaled(each, each["peer"])):.1f}" cy="{y + 10}" r="5" fill="#fff" stroke="{PEER}" stroke-width="2.5"/>')
            text = f'{number(each["value"])}, target {"≥" if each["more"] else "≤"} {number(each["target"])}'
            for key in ("floor", "peer"):
                if each[key] is not None: text += f', {key} {number(each[key])}'
            out.append(f'<text x="{left + width + 20}" y="{y + 14}">{escape(text)}</text>')
            y += line
        if not rows: y += line
    out.append(f'<path d="M{x_of(1):.1f} {head - 8}V{y + 4}" stroke="#222" stroke-dasharray="5 4"/><text x="{x_of(1):.1f}" y="{head - 10}" text-anchor="middle" font-size="11">target</text>')
    out.append(f'<text x="14" y="{y + 24}" fill="#555" font-size="12">{escape(foot)}</text></svg>\n')
    path.write_text("\n".join(out))


def write(workloads, ended, smoke=False):
    """`workloads`: id -> what; `ended`: id -> "" or why it has no figures. The table on the standard output, the SVG into a file."""
    groups, times, foot = [], [], ""
    print("\n== overview ==")
    for name, what in workloads.items():
        rows, reason = [], ended.get(name) or ""
        path = servers.OUT / f"{name}{'-smoke' if smoke else ''}.json"
        if not reason:
            report = json.loads(path.read_text())
            rows = rows_of(report)
            times.append(report["time"])
            foot = f"begun within {(max(times) - min(times)) // 60} minutes, on Linux {report['kernel']}, {report['cpus']} CPUs; an arrow: more than {LONGEST:.0f} x the target"
            words = [word for word, _ in report["verdicts"]]
            reason = ", ".join(f"{words.count(w)} {w}" for w in dict.fromkeys(words))
        groups.append((name, what, rows, reason))
        print(f"{name:6} {what}: {reason}")
        for each in rows:
            print(f"       {each['verdict']:12} {each['what']}: {number(each['value'])}, target {'>=' if each['more'] else '<='} {number(each['target'])}"
                  + (f", floor {number(each['floor'])}" if each["floor"] is not None else "") + (f", best peer {number(each['peer'])}" if each["peer"] is not None else ""))
    out = servers.OUT / f"overview{'-smoke' if smoke else ''}.svg"
    draw(out, groups, foot)
    print(f"written: {out.relative_to(servers.ROOT)}")
