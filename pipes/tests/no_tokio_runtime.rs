//! No feature brings a part of tokio that needs its runtime.

use std::process::Command;

#[test]
fn tokio_is_in_the_tree_for_its_traits_only() {
    let told = Command::new(env!("CARGO"))
        .args([
            "tree",
            "--offline",
            "-p",
            "epoxide-pipes",
            "--all-features",
            "-e",
            "features,no-dev",
            "--prefix",
            "none",
        ])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    let tree = String::from_utf8(told.stdout).unwrap();
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    let features: std::collections::BTreeSet<_> =
        tree.lines().filter_map(|line| line.strip_prefix("tokio feature \"")?.split('"').next()).collect();
    assert!(features.contains("io-util"), "the tree is not what it was taken for: {features:?}");
    for needs_a_runtime in ["rt", "rt-multi-thread", "net", "time", "fs", "process", "signal", "macros", "full"] {
        assert!(!features.contains(needs_a_runtime), "tokio's feature {needs_a_runtime} is in the tree");
    }
    for other in ["mio v", "socket2 v", "tokio-macros v"] {
        assert!(!tree.lines().any(|line| line.starts_with(other)), "{other} is in the tree");
    }
}
