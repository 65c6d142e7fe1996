#!/usr/bin/env python3
"""The house rules that no compiler checks, over every .rs file of the workspace.

usage: ci/rules.py [--root DIR] [--self-test]

  unsafe    the word appears only in the rooms that the crate's src/lib.rs lists in a line
            `//! unsafe rooms: sys, ...` (a crate without the line has none)
  arrows    inside runtime/src a room uses only the rooms that the table ARROWS allows it
  syscalls  inside runtime/src only sys names libc or nix
  atomics   inside runtime/src only sync and sys name std::sync::atomic (sync swaps them for loom's);
            a file that must, says so: `// std atomic: REASON`
  clock     inside runtime/src only time and sys name Instant::now; elsewhere `// clock: REASON`
  length    a file over 500 lines fails, over 400 is mentioned
  sleeps    thread::sleep needs `// sleep: REASON` on its line or right above
  marks     no todo!, unimplemented!, FIXME, XXX, and no #[ignore] without a reason
  headers   every file starts with `//!`

Comments and strings are not code: a word in them breaks no rule. Test code (cfg(test), and files
or directories named for tests or loom) is free of arrows, syscalls, atomics and clock.
--self-test breaks every rule once in a scratch tree and checks that each breach is seen.
"""
import argparse, pathlib, re, sys, tempfile

# Room -> rooms it may use. Arrows go one way: sys, sync, id, error <- buf, exec, time <- conn <- reactor <- runtime.
LEAVES = {"sys", "sync", "id", "error", "config", "stats", "trace"}
ARROWS = {
    "id": set(),
    "error": {"id", "sys"},
    "sync": {"id"},
    # sys names the errnos that error sorts by; sys itself wraps its errors without error.
    "sys": {"id", "sync"},
    "config": {"id", "error", "sys"},
    # stats shows the pool's gauges; so the pool must not count there.
    "stats": {"id", "sync", "buf"},
    # What the feature `tracing` tells: subscribers are user code, so only rooms that may run it.
    "trace": {"id", "error", "sync"},
    "buf": LEAVES - {"stats", "trace"},
    "exec": LEAVES | {"buf"},
    "time": LEAVES | {"exec"},
    "conn": LEAVES | {"buf", "exec", "time"},
    "reactor": LEAVES | {"buf", "exec", "time", "conn"},
    # Two rooms on top: workers is used by runtime, never the other way.
    "workers": LEAVES | {"buf", "exec", "time", "conn", "reactor"},
    "runtime": LEAVES | {"buf", "exec", "time", "conn", "reactor", "workers"},
}
WARN_LINES, MAX_LINES = 400, 500
SKIP = {"target", "peers", ".git"}
TEST_NAME = re.compile(r"(^|_)(tests?|loom)($|_)")
TEST_CFG = re.compile(r"#!?\[cfg\((all\()?\s*(not\(loom\),\s*)?(any\()?(test|loom)\b")


def strip(text):
    """The same text with comments and string contents blanked: line numbers stay."""
    out, i, n = [], 0, len(text)
    blank = lambda s: re.sub(r"[^\n]", " ", s)
    while i < n:
        two = text[i:i + 2]
        if two == "//":
            j = text.find("\n", i)
            j = n if j < 0 else j
        elif two == "/*":
            depth, j = 1, i + 2
            while j < n and depth:  # block comments nest
                if text.startswith("/*", j): depth, j = depth + 1, j + 2
                elif text.startswith("*/", j): depth, j = depth - 1, j + 2
                else: j += 1
        elif (m := re.compile(r'(?:b|c)?r(#*)"').match(text, i)) and not (i and (text[i - 1].isalnum() or text[i - 1] == "_")):
            j = text.find('"' + m.group(1), m.end())
            j = n if j < 0 else j + 1 + len(m.group(1))
        elif text[i] == '"':
            j = i + 1
            while j < n and text[j] != '"': j += 2 if text[j] == "\\" else 1
            j += 1
        elif m := re.compile(r"'(?:\\(?:u\{[^}]*\}|x..|.)|[^\\'\n])'").match(text, i):
            j = m.end()  # a char, not a lifetime
        else:
            out.append(text[i]); i += 1
            continue
        out.append(blank(text[i:j])); i = j
    return "".join(out)


def without_tests(code):
    """Blanks what stands under cfg(test) or cfg(loom): the item that follows the attribute."""
    while m := TEST_CFG.search(code):
        if m.group(0).startswith("#!"):  # the whole file
            return re.sub(r"[^\n]", " ", code)
        i, depth = m.end(), 0
        # The item ends at its closing brace, or at a `;` outside of braces.
        while i < len(code):
            if code[i] == "{": depth += 1
            elif code[i] == "}":
                depth -= 1
                if depth <= 0: break
            elif code[i] == ";" and depth == 0: break
            i += 1
        code = code[:m.start()] + re.sub(r"[^\n]", " ", code[m.start():i + 1]) + code[i + 1:]
    return code


def heads(group):
    """First names of `{a::b, c::{d, e}, F}`, given the text after the opening brace."""
    depth, names, fresh = 0, [], True
    for m in re.finditer(r"[{},]|\w+", group):
        t = m.group(0)
        if t == "{": depth += 1
        elif t == "}":
            if depth == 0: break
            depth -= 1
        elif t == ",": fresh = fresh or depth == 0
        elif depth == 0 and fresh: names.append(t); fresh = False
    return names


def uses(code, module):
    """(offset, name) of every first name under the crate root that `code` in `module` reaches."""
    for m in re.finditer(r"(?<![\w$])(?:crate|(?:super::)*super)::", code):
        ups = m.group(0).count("super")
        if ups and ups < len(module): continue  # stays inside its room
        rest = code[m.end():]
        if rest.startswith("{"): names = heads(rest[1:])
        else:
            word = re.match(r"(\w+|\*)\s*(!?)", rest)
            names = [] if not word or word.group(2) else [word.group(1)]
        for name in names:
            if name not in ("super", "self", "in"): yield m.start(), name


class Check:
    def __init__(self, root):
        self.root, self.errors, self.warnings, self.files, self.arrows = root, [], [], 0, 0

    def fail(self, rule, path, line, text):
        self.errors.append((rule, f"{path}:{line}: {rule}: {text}"))

    def run(self):
        for crate in sorted(p.parent for p in self.root.glob("*/Cargo.toml")):
            if crate.name not in SKIP: self.crate(crate)

    def crate(self, crate):
        lib = crate / "src/lib.rs"
        found = re.search(r"^//! unsafe rooms:(.*)$", lib.read_text(), re.M) if lib.exists() else None
        rooms = re.findall(r"[\w/]+", found.group(1)) if found else []
        for path in sorted(crate.rglob("*.rs")):
            inside = path.relative_to(crate).parts
            if not SKIP & set(inside): self.file(crate.name, path, inside, rooms)

    def file(self, crate, path, inside, rooms):
        self.files += 1
        name, text = path.relative_to(self.root), path.read_text()
        lines, code = text.split("\n"), strip(text)
        at = lambda offset: code.count("\n", 0, offset) + 1
        count = text.count("\n")
        if count > MAX_LINES: self.fail("length", name, count, f"{count} lines, at most {MAX_LINES}: split it by job")
        elif count > WARN_LINES: self.warnings.append(f"{name}: {count} lines (aim: {WARN_LINES})")
        if not text.lstrip("\ufeff").startswith("//!"): self.fail("headers", name, 1, "starts without `//!` (job, state, thread class, laws)")

        def excused(line, mark):
            """`// mark: reason` on this line or in the comment right above it."""
            reason = re.compile(r"//.*\b" + mark + r":\s*\S")
            if reason.search(lines[line - 1]): return True
            line -= 1
            while line and lines[line - 1].lstrip().startswith("//"):
                if reason.search(lines[line - 1]): return True
                line -= 1
            return False

        where = "/".join(inside[1:]) if inside[0] == "src" else None
        room_of = lambda r: where is not None and (where == r + ".rs" or where.startswith(r + "/"))
        if not any(room_of(r) for r in rooms):
            for m in re.finditer(r"\bunsafe\b|\b(?:allow|expect)\s*\(\s*unsafe_code\b", code):
                self.fail("unsafe", name, at(m.start()), f"outside the rooms listed in {crate}/src/lib.rs ({', '.join(rooms) or 'none'})")
        for m in re.finditer(r"\bthread::(?:sleep\b|\{[^}]*\bsleep\b)", code):
            if not excused(at(m.start()), "sleep"): self.fail("sleeps", name, at(m.start()), "wait for a signal, or give the reason: `// sleep: REASON`")
        for m in re.finditer(r"\b(?:todo|unimplemented)\s*!|#\[ignore\]", code):
            self.fail("marks", name, at(m.start()), f"unfinished: {m.group(0)}")
        for m in re.finditer(r"\bFIXME\b|\bXXX\b", text):
            self.fail("marks", name, text.count("\n", 0, m.start()) + 1, f"unfinished: {m.group(0)}")

        if crate != "runtime" or where is None or any(TEST_NAME.search(p.removesuffix(".rs")) for p in inside): return
        code = without_tests(code)
        module = [p.removesuffix(".rs") for p in inside[1:] if p not in ("mod.rs", "lib.rs")]
        room = module[0] if module else "lib"
        for rule, pattern, homes, excuse, advice in (
            ("syscalls", r"(?<![\w:])(?:::)?(?:libc|nix)::|\buse\s+(?:libc|nix)\b", ("sys",), None, "libc and nix are called in sys only"),
            ("atomics", r"\b(?:std|core)::sync::(?:atomic\b|\{[^}]*\batomic\b)", ("sync", "sys"), lambda _: "// std atomic: " in text, "take atomics from crate::sync, or say why: `// std atomic: REASON`"),
            ("clock", r"\bInstant::now\b", ("time", "sys"), lambda line: excused(line, "clock"), "read the clock in time, or say why: `// clock: REASON`"),
        ):
            for m in re.finditer(pattern, code):
                if room not in homes and not (excuse and excuse(at(m.start()))): self.fail(rule, name, at(m.start()), advice)
        if room == "lib": return
        if room not in ARROWS:
            return self.fail("arrows", name, 1, f"room {room} is not in the table ARROWS of ci/rules.py")
        for offset, used in uses(code, module):
            if used == room: continue
            self.arrows += 1
            if used not in ARROWS: self.fail("arrows", name, at(offset), f"crate::{used}: name the room that holds it, not the crate's root")
            elif used not in ARROWS[room]: self.fail("arrows", name, at(offset), f"{room} uses {used}; it may use {', '.join(sorted(ARROWS[room])) or 'no room'}")


GOOD = """//! Good.
/* unsafe in /* nested */ libc::x */
use crate::{error::Error, sync::{self, Word}};
const A: &str = "unsafe { todo!() } crate::reactor";
const B: &str = r#"unsafe " thread::sleep"#;
const C: char = '"'; // unsafe
fn f<'a>(x: &'a u8) { std::thread::sleep(D); // sleep: the peer has no signal
    super::gone(); }
// std atomic: a counter that loom need not see
use std::sync::atomic::AtomicU64;
#[cfg(test)]
mod tests { use crate::reactor::X; fn g() { Instant::now(); } }
"""
BAD = [  # rule, file, text
    ("unsafe", "runtime/src/conn/a.rs", "//! x\nfn f() { unsafe { g() } }\n"),
    ("unsafe", "pipes/src/lib.rs", "//! x\n#![allow(unsafe_code)]\n"),
    ("arrows", "runtime/src/buf/a.rs", "//! x\nuse crate::conn::X;\n"),
    ("arrows", "runtime/src/sys/a.rs", "//! x\nuse crate::{id::A, reactor::{B, C}};\n"),
    ("arrows", "runtime/src/conn/a/b.rs", "//! x\nfn f() { super::super::super::runtime::g() }\n"),
    ("arrows", "runtime/src/conn/b.rs", "//! x\nuse crate::Connection;\n"),
    ("arrows", "runtime/src/exec/c.rs", "//! x\n#[cfg(test)]\nmod tests;\nuse crate::conn::X;\n"),
    ("arrows", "runtime/src/novel/a.rs", "//! x\n"),
    ("syscalls", "runtime/src/conn/a.rs", "//! x\nlet x = libc::EAGAIN;\n"),
    ("atomics", "runtime/src/conn/a.rs", "//! x\nuse std::sync::{Arc, atomic::AtomicBool};\n"),
    ("clock", "runtime/src/conn/a.rs", "//! x\nlet t = Instant::now();\n"),
    ("arrows", "runtime/src/buf/a.rs", "//! x\nuse crate::stats::Count;\n"),
    ("length", "tests-e2e/tests/a.rs", "//! x\n" + "\n" * 501),
    ("sleeps", "tests-e2e/tests/a.rs", "//! x\nstd::thread::sleep(d);\n"),
    ("marks", "samples/src/a.rs", "//! x\nfn f() { todo!() }\n"),
    ("marks", "samples/src/a.rs", "//! x\n// FIXME later\n"),
    ("headers", "samples/src/a.rs", "fn f() {}\n"),
]


def self_test():
    def breaches(file, text):
        with tempfile.TemporaryDirectory() as d:
            root = pathlib.Path(d)
            for crate in ("runtime", "pipes", "samples", "tests-e2e"):
                (root / crate / "src").mkdir(parents=True)
                (root / crate / "Cargo.toml").touch()
                (root / crate / "src/lib.rs").write_text("//! x\n//! unsafe rooms: sys\n" if crate == "runtime" else "//! x\n")
            (root / "runtime/src/sys.rs").write_text("//! x\nunsafe fn f() { libc::close(0); }\n")
            path = root / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            check = Check(root); check.run()
            return sorted({rule for rule, _ in check.errors})
    wrong = [(f, b) for f, t in [("runtime/src/conn/good.rs", GOOD), ("runtime/src/sys/good.rs", "//! x\nuse crate::id::A;\n")] if (b := breaches(f, t))]
    wrong += [(rule, f, b) for rule, f, t in BAD if (b := breaches(f, t)) != [rule]]
    for w in wrong: print("self-test: unexpected result for", *w)
    print(f"rules: self-test of {len(BAD)} breaches and 2 clean files: {'FAILED' if wrong else 'ok'}")
    return 1 if wrong else 0


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    ap.add_argument("--self-test", action="store_true")
    args = ap.parse_args()
    if args.self_test: return self_test()
    check = Check(args.root); check.run()
    for w in check.warnings: print("note:", w)
    for _, e in check.errors: print(e)
    print(f"rules: {check.files} files, {check.arrows} arrows, {len(check.errors)} breaches")
    if not check.files or not (args.root / "runtime/src/lib.rs").exists():
        print("rules: no runtime/src/lib.rs: nothing was checked"); return 1
    return 1 if check.errors else 0


if __name__ == "__main__":
    sys.exit(main())
