# Shared by the scripts in ci/: source it, do not run it.
# It goes to the repository's root, so every script works from any directory.
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# rustup installs here, and a bare `bash` (no login shell) does not have it on PATH.
if ! command -v cargo >/dev/null 2>&1 && [ -x "${HOME:-/root}/.cargo/bin/cargo" ]; then
    PATH="${HOME:-/root}/.cargo/bin:$PATH"
fi
export PATH

# Plain output: logs are parsed for `test result:` lines.
export CARGO_TERM_COLOR="${CARGO_TERM_COLOR:-never}"
# A failing test tells where.
export RUST_BACKTRACE="${RUST_BACKTRACE:-1}"

# A script that cannot do its work on this machine (say, no ptrace) exits with
# this; ci/test then shows "skipped" instead of "ok".
# shellcheck disable=SC2034
SKIPPED=77

say()  { printf '%s\n' "$@"; }
warn() { printf '%s\n' "$*" >&2; }
die()  { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 1; }

# BoringSSL, built once by ci/setup for all profiles: without it cargo compiles it anew for each.
# shellcheck disable=SC2034
BORINGSSL="$PWD/target/boringssl"
if [ -z "${BORING_BSSL_PATH:-}" ] && [ -f "$BORINGSSL/version" ]; then
    export BORING_BSSL_PATH="$BORINGSSL" BORING_BSSL_ASSUME_PATCHED=1
fi
# What cargo says without it is hard to read.
need_boringssl() { [ -n "${BORING_BSSL_PATH:-}" ] || die "BoringSSL is not built: run ci/setup"; }

# Prints the comment block at the top of the calling script: its --help.
help_of() { awk 'NR == 1 { next } /^#/ { sub(/^# ?/, ""); print; next } { exit }' "$1"; }

need() { command -v "$1" >/dev/null 2>&1 || die "$1 is missing: run ci/setup"; }

# Adds up cargo's `test result:` lines in the given logs: "PASSED FAILED IGNORED".
sum_tests() {
    awk '/^test result: / {
             for (i = 2; i <= NF; i++) {
                 if ($i ~ /^passed;?$/)  passed  += $(i - 1)
                 if ($i ~ /^failed;?$/)  failed  += $(i - 1)
                 if ($i ~ /^ignored;?$/) ignored += $(i - 1)
             }
         }
         END { printf "%d %d %d\n", passed, failed, ignored }' /dev/null "$@"
}

# Is a process of this group alive? Not kill -0: a zombie that nobody reaps would count.
group_alive() {
    # A process may end while it is looked at: that is no error.
    { cat /proc/[0-9]*/stat 2>/dev/null || true; } |
        awk -v group="$1" '{ sub(/^.*\) /, ""); if ($3 == group && $1 != "Z") found = 1 } END { exit !found }'
}
