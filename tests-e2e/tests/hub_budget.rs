//! Law 8 in the hub: whoever moves a member's backlog on stops after 256 KiB, and the member's reactor goes on in turns.

use std::io;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use epoxide::{Connection, ReactorConfig, SharedLimits, SharedWriter};
use epoxide_pipes::hub::{BacklogLimits, HubOptions, Policy};
use epoxide_tests_e2e::broadcast::{FRAME, hub, numbers, until};
use epoxide_tests_e2e::{Case, Peer, Server, hold_reactor, loopback};

const HANG: Duration = Duration::from_secs(30);
/// More than eight of the hub's budgets.
const FRAMES: usize = 300;

/// A writer whose reactor stands still owes what it has; the hub keeps the rest. Once the reactor goes on and the kernel has
/// room, there is more to move than one turn may.
#[test]
fn a_large_backlog_is_moved_on_in_turns() {
    let case = Case::start();
    let (writers, shared) = channel::<SharedWriter>();
    let limits = SharedLimits { bytes: 64 * 1024, age: Duration::ZERO, ..SharedLimits::default() };
    let server = Server::start(&case, |b| {
        b.config(ReactorConfig { flush_budget: 16 * 1024, ..ReactorConfig::default() });
        b.listen(loopback(), move |connection: Connection| {
            let writers = writers.clone();
            async move {
                let (mut reader, writer) = connection.into_shared(limits);
                let _ = writers.send(writer);
                while reader.read().await?.is_some() {}
                io::Result::Ok(())
            }
        });
    });
    let backlog = BacklogLimits { frames: 10_000, bytes: 1 << 30, age: Duration::ZERO };
    let hub = hub(HubOptions { policy: Policy::DropOldest, backlog, ..HubOptions::default() });
    let mut movers = 0;
    for _ in 0..50 {
        let mut peer = Peer::connect(server.addr());
        let member = hub.join(shared.recv_timeout(HANG).expect("it is accepted")).unwrap();
        let held = hold_reactor(&server.reactor());
        let most = hub.stats().queued as usize + FRAMES;
        let sent = until(&hub, |hub| hub.stats().queued as usize >= most);
        let before = server.stats().tasks_spawned;
        let reader = thread::spawn(move || peer.read_exactly(sent * FRAME, HANG).map(|bytes| (peer, bytes)));
        held.release();
        let (_peer, bytes) = reader.join().unwrap().expect("every frame comes");
        assert_eq!(numbers(&bytes), (0..sent).collect::<Vec<_>>(), "in order, and none is left out");
        assert!(member.is_member());
        // Whoever had moved its share has made a task for the rest.
        movers += server.stats().tasks_spawned - before;
        drop(member.leave());
        if movers > 0 {
            break;
        }
    }
    assert!(movers > 0, "vacuity: no mover ever had more than its budget");
    assert_eq!(hub.stats().dropped_oldest, 0);
}
