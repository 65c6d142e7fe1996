//! Runs the seeded chaos suite: `ci/chaos` and the tests call it.
//! Job: the command line. State owned: none. Thread class: the main thread.

#[cfg(not(epoxide_chaos))]
fn main() -> std::process::ExitCode {
    eprintln!("built without the fault seam: RUSTFLAGS=\"--cfg epoxide_chaos\" is missing (ci/chaos sets it)");
    std::process::ExitCode::from(2)
}

#[cfg(epoxide_chaos)]
fn main() -> std::process::ExitCode {
    std::process::ExitCode::from(driver::main())
}

#[cfg(epoxide_chaos)]
mod driver {
    use std::time::{Duration, Instant};

    use clap::Parser;
    use epoxide_tests_chaos::plan::{self, Plan};
    use epoxide_tests_chaos::suite::{Failure, Tally, run_one};
    use epoxide_tests_chaos::workloads::{ALL, FAILS, Workload};

    /// Attacks the runtime from seeds. Without a seed: seeds from --from on.
    #[derive(Parser)]
    struct Args {
        /// Only this workload; may be repeated.
        #[arg(long)]
        workload: Vec<String>,
        /// Only this seed.
        #[arg(long)]
        seed: Option<u64>,
        /// The first seed.
        #[arg(long, default_value_t = 0)]
        from: u64,
        /// How many seeds.
        #[arg(long, default_value_t = 20)]
        seeds: u64,
        /// Seeds without end, for so many minutes.
        #[arg(long)]
        minutes: Option<f64>,
        /// Rules of the plan to leave out, by number.
        #[arg(long, value_delimiter = ',')]
        without: Vec<String>,
        /// How often a single seed is run.
        #[arg(long, default_value_t = 1)]
        times: u32,
        /// Report a failure as it is.
        #[arg(long)]
        no_shrink: bool,
        /// Fail unless every kind of fault was met.
        #[arg(long)]
        all_kinds: bool,
        /// Show the plan of every trial.
        #[arg(long)]
        verbose: bool,
    }

    pub(super) fn main() -> u8 {
        let args = Args::parse();
        // A handler that panics does so by design; its message would bury the report.
        std::panic::set_hook(Box::new(|info| {
            let text = info.to_string();
            if !text.contains("provoked on purpose") {
                eprintln!("{text}");
            }
        }));
        let workloads: Vec<Workload> = match args.workload.as_slice() {
            [] => ALL.to_vec(),
            names => ALL
                .iter()
                .chain([&FAILS])
                .copied()
                .filter(|workload| names.iter().any(|name| name == workload.name))
                .collect(),
        };
        if workloads.len() < args.workload.len().max(1) {
            let names: Vec<_> = ALL.iter().map(|workload| workload.name).collect();
            eprintln!("no such workload; there are {}", names.join(", "));
            return 2;
        }
        let without: Vec<usize> = args.without.iter().filter_map(|number| number.parse().ok()).collect();
        let begun = Instant::now();
        if let Some(seed) = args.seed {
            for workload in &workloads {
                println!("{}: {}", workload.name, Plan::new(seed, &without));
                for _ in 0..args.times {
                    if let Err(story) = run_one(*workload, seed, &without) {
                        return failed(
                            &Failure { workload: workload.name, seed, story },
                            args.no_shrink || !without.is_empty(),
                        );
                    }
                }
            }
            println!("chaos: seed {seed} passed {} times in {:.1} s", args.times, begun.elapsed().as_secs_f64());
            return 0;
        }
        let mut tally = Tally::default();
        let until = args.minutes.map(|minutes| begun + Duration::from_secs_f64(minutes * 60.0));
        let end = if until.is_some() { u64::MAX } else { args.from + args.seeds };
        let mut seed = args.from;
        let mut told = begun;
        while seed < end && until.is_none_or(|until| Instant::now() < until) {
            if args.verbose {
                println!("{}", Plan::new(seed, &[]));
            }
            if let Err(failure) = tally.run(&workloads, seed..seed + 1, until) {
                eprintln!("chaos: FAILED after {}", tally.summary(begun.elapsed()));
                return failed(&failure, args.no_shrink);
            }
            seed += 1;
            if told.elapsed() >= Duration::from_secs(20) {
                told = Instant::now();
                println!("chaos: seed {seed}: {}", tally.summary(begun.elapsed()));
            }
        }
        let missed: Vec<_> = plan::hits().into_iter().filter(|(_, n)| *n == 0).map(|(kind, _)| kind).collect();
        for (kind, hits) in plan::hits() {
            println!("  {kind:?} {hits}");
        }
        println!("chaos: seeds {}..{seed}: {}, no failure", args.from, tally.summary(begun.elapsed()));
        if args.all_kinds && !missed.is_empty() {
            eprintln!("chaos: these faults were never met: {missed:?}");
            return 1;
        }
        0
    }

    fn failed(failure: &Failure, as_it_is: bool) -> u8 {
        eprintln!("{}", failure.story);
        eprintln!("again: {}", failure.command(&[]));
        if !as_it_is {
            eprintln!("shrinking ...");
            match failure.shrink() {
                Some(without) => {
                    eprintln!("smallest: {}\nagain: {}", Plan::new(failure.seed, &without), failure.command(&without));
                }
                None => eprintln!("not smaller: on its own, in a process of its own, it does not fail again"),
            }
        }
        1
    }
}
