//! A short run of the seeded suite: every workload under the same seeds, each in a process of its own.
//!
//! A failure prints the command that runs it again, and the smallest plan under which it still fails.

/// The stage of `ci/test` says that the seam must be there: without it everything here would pass by not existing.
#[test]
fn the_seam_is_compiled_in_where_it_must_be() {
    let wanted = std::env::var_os("EPOXIDE_CHAOS_SEAM").is_some();
    assert!(
        !wanted || cfg!(epoxide_chaos),
        "EPOXIDE_CHAOS_SEAM is set, but --cfg epoxide_chaos is missing in RUSTFLAGS"
    );
}

#[cfg(epoxide_chaos)]
mod seeded {
    use std::process::{Command, Output};

    use epoxide_tests_chaos::workloads::ALL;

    /// Seeds per workload; half of them lose nothing, half do.
    const SEEDS: &str = "60";

    fn drive(args: &[&str]) -> (Output, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_chaos"));
        let output = command.args(args).output().expect("the driver starts");
        let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        (output, text)
    }

    fn run(workload: &str) {
        let seeds = std::env::var("EPOXIDE_CHAOS_SEEDS").unwrap_or_else(|_| SEEDS.into());
        let (output, text) = drive(&["--workload", workload, "--seeds", &seeds]);
        assert!(output.status.success(), "{text}");
        let last = text.lines().find(|line| line.ends_with("no failure")).unwrap_or_default();
        println!("{workload}: {last}");
        // Vacuity: faults were met, and every seed ran.
        assert!(last.contains(&format!("0..{seeds}: {seeds} trials")), "{text}");
        assert!(!last.contains(" 0 faults"), "{text}");
    }

    macro_rules! workloads {
        ($($(#[$note:meta])* $name:ident)+) => {
            $(#[test]
            $(#[$note])*
            fn $name() {
                run(stringify!($name));
            })+

            #[test]
            fn every_workload_has_its_test() {
                let tested = [$($(#[$note])* stringify!($name)),+];
                let all: Vec<_> = ALL.iter().map(|workload| workload.name).collect();
                assert_eq!(all, tested);
            }
        };
    }

    workloads! {
        echo relay churn timers workers wakes shared halves file
        hub pipes rehome stale stop unruly
        #[cfg(feature = "tls")] tls
        #[cfg(feature = "tls")] tls_threads
    }

    /// Every kind of fault is met by some seed of the short run: a door that lost its seam shows here.
    #[test]
    fn every_kind_of_fault_is_met() {
        let mut args = vec!["--from", "1000", "--seeds", "40", "--all-kinds"];
        ["echo", "churn", "file", "workers"].iter().for_each(|workload| args.extend(["--workload", workload]));
        let (output, text) = drive(&args);
        assert!(output.status.success(), "{text}");
    }

    /// A failure prints the command that runs it again, and the smallest plan under which it still fails; and the printed
    /// command is right.
    #[test]
    fn a_failure_is_replayed_and_shrunk_by_what_it_prints() {
        let (output, text) = drive(&["--workload", "fails", "--seeds", "40"]);
        assert_eq!(output.status.code(), Some(1), "{text}");
        let lines = |start: &str| -> Vec<&str> { text.lines().filter_map(|line| line.strip_prefix(start)).collect() };
        let (commands, smallest) = (lines("again: ci/chaos "), lines("smallest: seed "));
        let [whole, small] = commands[..] else { panic!("{text}") };
        let (seed, rules) = smallest[0].split_once(": ").expect("a seed and its rules");
        assert!(rules.matches('=').count() == 1 && rules.contains("=RecvShort/"), "more than it takes: {text}");
        let number = rules.split('=').next().expect("the number of the rule");
        let spared = format!("--workload fails --seed {seed} --without {number}");
        for (command, code) in [(whole, 1), (small, 1), (&spared, 0)] {
            let args: Vec<_> = command.split_whitespace().chain(["--no-shrink"]).collect();
            let (output, text) = drive(&args);
            assert_eq!(output.status.code(), Some(code), "{command}: {text}");
        }
    }
}
