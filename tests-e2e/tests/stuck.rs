//! A handler or a task that blocks its thread and does not come back holds no stop: it is waited for a little, reported, and
//! left behind. G7 of the shutdown list.

use std::io;
use std::thread;
use std::time::Duration;

use epoxide::Connection;
use epoxide_tests_e2e::{Case, Gate, Peer, Server, loopback, wait_until};

const SOON: Duration = Duration::from_secs(20);
/// Longer than any stop of these tests takes.
const LONG: Duration = Duration::from_secs(50);
const GRACE: Duration = Duration::from_millis(100);

/// Says that it is there, and stays until the gate opens.
fn stay(begun: &Gate, over: &Gate) -> bool {
    begun.open();
    over.wait_blocking(LONG)
}

/// The other reactor is drained as always, and the stuck one ends when its handler comes back at last.
#[test]
fn a_handler_that_blocks_its_reactor_is_left_behind() {
    let case = Case::start();
    let (begun, over) = (Gate::new(), Gate::new());
    let (tell, hold) = (begun.clone(), over.clone());
    let server = Server::start(&case, |b| {
        b.reactors(2);
        b.listen(loopback(), move |mut connection: Connection| {
            let (tell, hold) = (tell.clone(), hold.clone());
            async move {
                let request = connection.read_idle().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
                assert!(stay(&tell, &hold), "the stop has waited for it");
                connection.send_all(&request).await
            }
        });
    });
    let mut peer = Peer::connect(server.addr());
    peer.send(b"x").unwrap();
    assert!(begun.wait_blocking(SOON));
    let reactors = server.runtime().handles();
    let report = server.stop(GRACE).unwrap();
    assert!(report.threads_stuck == 1 && !report.graceful && report.took >= GRACE, "{report:?}");
    assert_eq!(reactors.iter().filter(|reactor| reactor.is_stopped()).count(), 1);
    over.open();
    assert!(wait_until(SOON, || reactors.iter().all(|reactor| reactor.is_stopped())));
    assert!(peer.ending(SOON).is_closed());
}

/// In both forms of the stop.
#[test]
fn a_task_that_blocks_its_worker_is_left_behind() {
    let case = Case::start();
    for blocking in [true, false] {
        let server = Server::start(&case, |_| {});
        let (begun, over) = (Gate::new(), Gate::new());
        let (tell, hold) = (begun.clone(), over.clone());
        let task = server.reactor().workers().spawn(async move { stay(&tell, &hold) });
        assert!(task.is_ok() && begun.wait_blocking(SOON));
        let report = if blocking {
            server.stop(GRACE).unwrap()
        } else {
            let stopped = server.runtime().shutdown(GRACE);
            // A thread without a runtime of its own.
            let report = thread::spawn(move || epoxide::block_on(stopped)).join().unwrap();
            // Once more, and the runtime goes.
            assert_eq!(server.stop(Duration::ZERO).unwrap().threads_stuck, 1);
            report
        };
        assert!(report.threads_stuck == 1 && !report.graceful && report.cut == 0, "{report:?}");
        over.open();
        assert!(epoxide::block_on(task.unwrap()).is_ok_and(|in_time| in_time), "the stop has waited for it");
    }
}
