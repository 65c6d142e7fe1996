//! `Runtime::run` and `Builder::run`: until a signal, with a drain, cut short by a second one; and what ends them without any.

use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Once;
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use epoxide::signal::{SignalKind, Signals};
use epoxide::{Builder, Connection, ReactorHandle, Runtime};
use epoxide_tests_e2e::{Case, Ending, Gate, Parker, Peer, echo, loopback, poll_once, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const SOON: Duration = Duration::from_secs(10);
/// Longer than any test: whoever waits for it fails by the watchdog.
const NEVER: Duration = Duration::from_secs(600);

/// Signal watches that a process may have.
const WATCHES: usize = 16;

/// The pipes of the signal watches stay open for the life of the process: all are made before anything is counted.
fn start() -> Case {
    static MADE: Once = Once::new();
    MADE.call_once(|| {
        epoxide::block_on(async {
            drop([(); WATCHES].map(|()| Signals::new(&[SignalKind::User1]).unwrap()));
        });
    });
    Case::start()
}

fn signal(signal: Signal) {
    kill(Pid::this(), signal).unwrap();
}

/// Whether this process has a handler for it (proc(5)).
fn is_caught(signal: Signal) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).expect("a line of every kernel's");
    u64::from_str_radix(mask.trim(), 16).unwrap() & (1 << (signal as i32 - 1)) != 0
}

/// What is ready is called when a signal drains already; an idle connection ends with its FIN.
#[test]
fn a_signal_drains() {
    let _case = start();
    for terminate in [Signal::SIGTERM, Signal::SIGINT] {
        let mut builder = Runtime::builder();
        builder.reactors(2).listen(loopback(), |mut connection: Connection| async move {
            while let Some(received) = connection.read_idle().await? {
                connection.send_all(&received).await?;
            }
            io::Result::Ok(())
        });
        let runtime = builder.build().unwrap();
        let addr = runtime.local_addrs()[0];
        let (peers, taken) = channel();
        let report = runtime.run_with(SOON, move || {
            let mut peer = Peer::connect(addr);
            peer.send(b"x").unwrap();
            assert_eq!(peer.read_exactly(1, SOON), Ok(b"x".to_vec()));
            peers.send(peer).unwrap();
            signal(terminate);
        });
        let report = report.unwrap();
        assert!(report.graceful && report.cut == 0 && report.jobs_running == 0, "{report:?}");
        assert_eq!(taken.recv().unwrap().ending(SOON), Ending::Eof);
    }
}

/// A runtime whose handler tells when it begins and when it is drained, and answers when it may; and a client of it, which
/// sends the first signal, and calls `then` while the drain waits for it.
fn busy(over: &Gate, then: impl FnOnce() + Send + 'static) -> (Builder, JoinHandle<(Vec<u8>, Ending)>) {
    let listener = TcpListener::bind(loopback()).unwrap();
    let addr = listener.local_addr().unwrap();
    let (begun, drains) = (Gate::new(), Gate::new());
    let (told, over) = ([begun.clone(), drains.clone()], over.clone());
    let mut builder = Runtime::builder();
    builder.reactors(1).listen_on(listener, move |mut connection: Connection| {
        let ([begun, drains], over) = (told.clone(), over.clone());
        async move {
            begun.open();
            connection.draining().await;
            drains.open();
            over.wait().await;
            connection.send_all(b"done").await
        }
    });
    let client = thread::spawn(move || {
        let mut peer = Peer::connect(addr);
        assert!(begun.wait_blocking(SOON) && wait_until(SOON, || is_caught(Signal::SIGTERM)));
        signal(Signal::SIGTERM);
        assert!(drains.wait_blocking(SOON), "the first signal drains");
        then();
        peer.read_to_end(SOON)
    });
    (builder, client)
}

/// The first signal waits for who is busy, the second one does not.
#[test]
fn a_second_signal_cuts_what_is_busy() {
    let _case = start();
    let (mut builder, client) = busy(&Gate::new(), || signal(Signal::SIGINT));
    let report = builder.build().unwrap().run(NEVER).unwrap();
    assert!(report.cut == 1 && !report.graceful, "{report:?}");
    assert_eq!(client.join().unwrap(), (Vec::new(), Ending::Reset));
}

/// What is over within the grace is not cut.
#[test]
fn a_drain_waits_for_what_is_busy() {
    let _case = start();
    let over = Gate::new();
    let opener = over.clone();
    let (mut builder, client) = busy(&over, move || opener.open());
    let report = builder.build().unwrap().run(NEVER).unwrap();
    assert!(report.cut == 0 && report.graceful, "{report:?}");
    assert_eq!(client.join().unwrap(), (b"done".to_vec(), Ending::Eof));
}

/// Nobody ends what is busy but the builder's grace.
#[test]
fn the_grace_is_the_builders() {
    let _case = start();
    let (mut builder, client) = busy(&Gate::new(), || ());
    builder.grace(Duration::from_millis(300)).run().unwrap();
    assert_eq!(client.join().unwrap(), (Vec::new(), Ending::Reset));
}

/// A reactor that dies ends the run with its own error, without a signal.
#[test]
fn a_fault_ends_the_run() {
    let _case = start();
    let listener = TcpListener::bind(loopback()).unwrap();
    let killer = listener.try_clone().unwrap();
    let mut builder = Runtime::builder();
    builder.reactors(1).listen_on(listener, echo);
    let runtime = builder.build().unwrap();
    let error = runtime.run_with(SOON, || {
        // shutdown(2) of a listening socket: every accept says EINVAL from then on.
        nix::sys::socket::shutdown(killer.as_raw_fd(), nix::sys::socket::Shutdown::Both).unwrap();
    });
    let error = error.unwrap_err();
    assert!(error.to_string().contains("listener 0"), "{error}");
}

/// A stop by hand ends the run as well.
#[test]
fn a_stop_ends_the_run() {
    let _case = start();
    let runtime = Runtime::builder().reactors(2).build().unwrap();
    let handles = runtime.handles();
    let report = runtime.run_with(NEVER, move || handles.iter().for_each(ReactorHandle::stop)).unwrap();
    assert!(report.graceful, "{report:?}");
}

/// A blocking job has what is left of the grace, and a second signal gives it up.
#[test]
fn a_second_signal_does_not_wait_for_a_job() {
    let _case = start();
    let runtime = Runtime::builder().reactors(1).build().unwrap();
    let (handle, begun, over) = (runtime.handle(), Gate::new(), Gate::new());
    let (tell, hold) = (begun.clone(), over.clone());
    let job = handle.workers().spawn_blocking(move || {
        tell.open();
        hold.wait_blocking(SOON)
    });
    let job = job.unwrap();
    assert!(begun.wait_blocking(SOON));
    let signals = thread::spawn(move || {
        assert!(wait_until(SOON, || handle.is_stopped()));
        signal(Signal::SIGTERM);
    });
    let report = runtime.run_with(NEVER, || signal(Signal::SIGTERM)).unwrap();
    assert!(report.jobs_running == 1 && !report.graceful, "{report:?}");
    over.open();
    signals.join().unwrap();
    assert!(epoxide::block_on(job).unwrap());
}

/// Nothing can interrupt a reactor whose user code does not come back: it is left behind, or only SIGKILL would end the program.
#[test]
fn a_second_signal_does_not_wait_for_ever_for_a_reactor() {
    let _case = start();
    let runtime = Runtime::builder().reactors(2).build().unwrap();
    let (handles, begun, over) = (runtime.handles(), Gate::new(), Gate::new());
    let (tell, hold) = (begun.clone(), over.clone());
    let stuck = move || {
        tell.open();
        hold.wait_blocking(NEVER)
    };
    let stuck = handles[0].run_here(stuck).unwrap();
    assert!(begun.wait_blocking(SOON));
    // The other one has seen the first signal. It waits for the stuck one: a task of its own may have a connection of that.
    let (waits, drains) = (Gate::new(), Gate::new());
    let (waiting, draining) = (waits.clone(), drains.clone());
    let watch = async move {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let connection = Connection::from_unix(ours).unwrap();
        waiting.open();
        connection.draining().await;
        draining.open();
    };
    handles[1].spawn(watch).unwrap().detach();
    assert!(waits.wait_blocking(SOON));
    let signals = thread::spawn(move || {
        assert!(drains.wait_blocking(SOON));
        signal(Signal::SIGTERM);
        handles
    });
    let report = runtime.run_with(NEVER, || signal(Signal::SIGTERM)).unwrap();
    assert!(report.threads_stuck == 1 && !report.graceful, "{report:?}");
    let handles = signals.join().unwrap();
    assert!(!handles[0].is_stopped() && handles[1].is_stopped());
    over.open();
    assert!(wait_until(SOON, || handles[0].is_stopped()));
    assert!(epoxide::block_on(stuck).unwrap());
}

/// Where waiting is forbidden it is refused, before any signal is taken away from its handler.
#[test]
fn it_does_not_wait_where_nobody_may() {
    let _case = start();
    let outer = Runtime::builder().reactors(1).build().unwrap();
    let refused = || Runtime::builder().reactors(1).build().unwrap().run(SOON).map(drop);
    let on_a_reactor = outer.block_on(outer.handle().run_here(refused).unwrap()).unwrap().unwrap_err();
    let task = outer.handle().workers().spawn(async move { refused() }).unwrap();
    let on_a_worker = outer.block_on(task).unwrap().unwrap_err();
    for (error, place) in [(on_a_reactor, "reactor thread"), (on_a_worker, "async worker")] {
        assert_eq!(error.kind(), io::ErrorKind::Deadlock);
        assert!(error.to_string().contains(place) && error.to_string().contains("Runtime::run"), "{error}");
    }
}

/// One more watch than there may be is refused, by `run` too, and nothing is taken away from anybody; one that goes makes room.
#[test]
fn too_many_watches_are_refused() {
    let _case = start();
    epoxide::block_on(async {
        let mut watches: Vec<_> = (0..WATCHES).map(|_| Signals::new(&[SignalKind::User1]).unwrap()).collect();
        let refused = Signals::new(&[SignalKind::User1]).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::QuotaExceeded);
        assert!(refused.to_string().contains("16"), "{refused}");
        let run = || Runtime::builder().reactors(1).build().unwrap().run(SOON).map(drop);
        let refused = thread::spawn(run).join().unwrap().unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::QuotaExceeded);
        signal(Signal::SIGUSR1);
        assert_eq!(watches[WATCHES - 1].next().await.unwrap(), SignalKind::User1);
        watches.pop();
        Signals::new(&[SignalKind::User1]).unwrap();
    });
}

/// Ctrl-C as a future, once; given up, the signal is not its.
#[test]
fn an_interrupt_is_waited_for() {
    let _case = start();
    epoxide::block_on(async {
        let mut waiting = std::pin::pin!(epoxide::signal::ctrl_c());
        let parker = Parker::new();
        assert!(poll_once(waiting.as_mut(), &parker).is_pending());
        assert!(is_caught(Signal::SIGINT));
        signal(Signal::SIGINT);
        waiting.await.unwrap();
        drop(epoxide::signal::ctrl_c());
    });
    assert!(!is_caught(Signal::SIGINT), "nobody waits for it any more");
}
