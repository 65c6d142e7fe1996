//! TLS samples as programs: their certificates, and what their start lines suggest. State: the certificates, made once.
//! Thread class: any thread.

use crate::common::Sample;
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

/// The directory that `ci/certs` has filled, once for all tests, or before them (`EPOXIDE_CERTS`).
pub(crate) static CERTS: LazyLock<String> = LazyLock::new(|| {
    if let Ok(ready) = std::env::var("EPOXIDE_CERTS") {
        return ready;
    }
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("certs");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ci/certs");
    let made = Command::new("bash").arg(script).arg(&dir).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    dir.to_str().unwrap().to_owned()
});

/// A sample with these certificates.
pub(crate) fn start(program: &str, more: &[&str]) -> Sample {
    Sample::start(program, &[&["--certs", &CERTS], more].concat())
}

/// Types in what the start line suggests, with further arguments. The answer's body, and the status.
pub(crate) fn try_it(sample: &Sample, more: &[&str]) -> (String, String) {
    let output = curl(sample, "try: ").args(["-sS", "-w", "\n%{http_code}"]).args(more).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let (body, status) = text.rsplit_once('\n').unwrap();
    (body.to_owned(), status.to_owned())
}

/// The curl command that the start line suggests, behind `what`.
pub(crate) fn curl(sample: &Sample, what: &str) -> Command {
    // Behind it: what else it needs, or what Ctrl-C does.
    let line = sample.first_line.split(what).nth(1).unwrap().split("   ").next().unwrap();
    let mut words = line.split(' ').filter(|word| !word.is_empty());
    let mut command = Command::new(words.next().unwrap());
    assert_eq!(command.get_program(), "curl");
    command.args(words);
    command
}
