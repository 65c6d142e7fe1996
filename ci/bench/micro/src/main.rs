//! One small workload, N times, on one runtime: `micro RUNTIME WORKLOAD N`. Run under callgrind with two counts, the
//! difference is what one costs. The workloads are the same code for every runtime; only the calls in `rt` differ.
//!
//! State: none. Thread class: the main thread, and one more in `cross`.

mod cases;
mod hub;
mod hub_funnel;
mod pool;
mod rt;

use rt::{AsyncExecutor, Epoxide, Rt, Tokio};
use std::process::ExitCode;

const USAGE: &str = "usage: micro {epoxide|tokio|async-executor} {empty|spawn|yield|wake|cross|asleep|churn|batch|due|parked|burst|none} N, or micro hub-{epoxide|sequenced|funnel|tokio} MEMBERS LEN N";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [who, addr, numbers @ ..] = &args[..]
        && who == "hub-receive"
        && let Ok(addr) = addr.parse()
        && let [members, len, broadcasts] = numbers.iter().filter_map(|n| n.parse().ok()).collect::<Vec<_>>()[..]
    {
        hub::receive(addr, members, len, broadcasts);
        return ExitCode::SUCCESS;
    }
    if let [who, numbers @ ..] = &args[..]
        && let [members, len, broadcasts] = numbers.iter().filter_map(|n| n.parse().ok()).collect::<Vec<_>>()[..]
        && members > 0
        && len >= 4
        && hub::run(who, members, len, broadcasts)
    {
        return ExitCode::SUCCESS;
    }
    let [runtime, workload, n] = &args[..] else {
        eprintln!("{USAGE}");
        return ExitCode::FAILURE;
    };
    let Ok(n) = n.parse() else {
        eprintln!("{USAGE}");
        return ExitCode::FAILURE;
    };
    let known = match runtime.as_str() {
        "epoxide" => run::<Epoxide>(workload, n) || more::<Epoxide>(workload, n),
        "tokio" => run::<Tokio>(workload, n) || more::<Tokio>(workload, n),
        "async-executor" => run::<AsyncExecutor>(workload, n),
        _ => false,
    };
    if known {
        return ExitCode::SUCCESS;
    }
    eprintln!("{USAGE}\nasync-executor has no timers and no pool");
    ExitCode::FAILURE
}

fn run<R: Rt>(workload: &str, n: u64) -> bool {
    match workload {
        "empty" => R::block_on(async {}),
        "spawn" => R::block_on(cases::spawn::<R>(n)),
        "yield" => R::block_on(cases::yields::<R>(n)),
        "wake" => R::block_on(cases::wake::<R>(n)),
        "cross" => R::block_on(cases::cross::<R>(n)),
        "asleep" => R::block_on(cases::asleep::<R>(n)),
        _ => return false,
    }
    true
}

fn more<R: rt::Timers + rt::Pool>(workload: &str, n: u64) -> bool {
    match workload {
        "churn" => R::block_on(cases::churn::<R>(n)),
        "batch" => R::block_on(cases::batch::<R>(n)),
        "due" => R::block_on(cases::due::<R>(n)),
        "parked" => R::block_on(pool::parked::<R>(n)),
        "burst" => R::block_on(pool::burst::<R>(n)),
        "none" => R::block_on(pool::none::<R>(n)),
        _ => return false,
    }
    true
}
