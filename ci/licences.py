#!/usr/bin/env python3
"""The licences of every crate that a build for Linux takes, against a list of those that this project takes.

usage: ci/licences.py [--list] [--self-test]

  --list       also prints each licence with its crates

BoringSSL, whose sources come inside of boring-sys, is under Apache-2.0 (its LICENSE names the exceptions).
A crate whose licence is missing or not on the list fails, by name. Known vulnerabilities are another matter: their list
is in the advisory database, which has to be fetched; with network access run

  cargo install --locked cargo-deny && cargo deny check advisories
"""
import argparse, json, re, subprocess, sys

# Permissive ones only: who builds on the crates has to keep notices, and nothing else.
TAKEN = {
    "MIT", "MIT-0", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-2-Clause", "BSD-3-Clause", "ISC", "Zlib",
    "0BSD", "Unlicense", "BSL-1.0", "CC0-1.0", "Unicode-3.0",
}


def allowed(expression):
    """Is there a choice of licences in this SPDX expression that is taken as a whole?"""
    text = expression.replace("/", " OR ")  # how it was written before SPDX
    tokens = re.findall(r"\(|\)|[\w.+-]+(?: WITH [\w.+-]+)?", text)
    words = {"(": "(", ")": ")", "OR": "or", "AND": "and"}
    python = " ".join(words.get(token) or str(token in TAKEN) for token in tokens)
    try:
        return bool(eval(python, {"__builtins__": {}}))  # made of True, False, and, or and brackets alone
    except SyntaxError:
        return False


def self_test():
    for expression, expected in [
        ("MIT", True), ("MIT OR Apache-2.0", True), ("MIT/Apache-2.0", True), ("GPL-3.0", False), ("", False),
        ("GPL-3.0 OR MIT", True), ("GPL-3.0 AND MIT", False), ("(MIT OR GPL-2.0) AND ISC", True),
        ("Apache-2.0 WITH LLVM-exception", True), ("GPL-2.0 WITH Classpath-exception-2.0", False), ("MIT AND", False),
    ]:
        assert allowed(expression) is expected, expression
    print("licences.py: the rule refuses what it should")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--self-test", action="store_true")
    args = parser.parse_args()
    if args.self_test:
        return self_test()
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--all-features"]
    command += ["--filter-platform", "x86_64-unknown-linux-gnu"]
    packages = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)["packages"]
    by_licence = {}
    for package in packages:
        by_licence.setdefault(package["license"] or "", []).append(f"{package['name']} {package['version']}")
    if len(packages) < 50:
        sys.exit(f"licences.py: cargo metadata names {len(packages)} packages: something is wrong")
    if args.list:
        for licence, names in sorted(by_licence.items()):
            print(f"{licence or '(none)'}: {', '.join(sorted(names))}")
    refused = {licence: names for licence, names in by_licence.items() if not allowed(licence)}
    for licence, names in sorted(refused.items()):
        print(f"not taken: {licence or '(no licence)'}: {', '.join(sorted(names))}", file=sys.stderr)
    print(f"licences: {len(packages)} packages, {len(by_licence)} licences, {sum(map(len, refused.values()))} not taken")
    sys.exit(bool(refused))


main()
