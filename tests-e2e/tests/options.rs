//! What a connection says of itself, and the socket options that it sets by name: each reaches the kernel, and is refused by
//! a socket that has no such option.

use std::io;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use epoxide::{Connection, SharedLimits};
use epoxide_tests_e2e::{Case, Ending, Peer, Server, block_within, handing_over, loopback};

const SOON: Duration = Duration::from_secs(10);

fn pair(server: &Server, accepted: &Receiver<Connection>) -> (Peer, Connection) {
    (Peer::connect(server.addr()), accepted.recv_timeout(SOON).expect("handed over"))
}

#[test]
fn options_reach_the_kernel_by_their_names() {
    let case = Case::start();
    let (server, accepted) = handing_over(&case, |_| {});
    let (_peer, connection) = pair(&server, &accepted);
    assert!(connection.nodelay().unwrap(), "it is on for what was accepted");
    for on in [false, true] {
        connection.set_nodelay(on).unwrap();
        assert_eq!(connection.nodelay().unwrap(), on);
        connection.set_quickack(on).unwrap();
        assert_eq!(connection.quickack().unwrap(), on);
    }
    let probes = (Duration::from_secs(77), Duration::from_secs(7), 5);
    assert_eq!(connection.keepalive().unwrap(), None);
    connection.set_keepalive(Some(probes.0), probes.1, probes.2).unwrap();
    assert_eq!(connection.keepalive().unwrap(), Some(probes));
    connection.set_keepalive(None, probes.1, probes.2).unwrap();
    assert_eq!(connection.keepalive().unwrap(), None);
    assert_eq!(connection.tcp_user_timeout().unwrap(), None);
    connection.set_tcp_user_timeout(Some(Duration::from_millis(4321))).unwrap();
    assert_eq!(connection.tcp_user_timeout().unwrap(), Some(Duration::from_millis(4321)));
    connection.set_tcp_user_timeout(Some(Duration::from_micros(1))).unwrap();
    assert_eq!(connection.tcp_user_timeout().unwrap(), Some(Duration::from_millis(1)));
    // Zero is what `None` is, as for every other clock.
    for off in [Some(Duration::ZERO), None] {
        connection.set_tcp_user_timeout(Some(SOON)).unwrap();
        connection.set_tcp_user_timeout(off).unwrap();
        assert_eq!(connection.tcp_user_timeout().unwrap(), None, "{off:?}");
    }
    // The kernel doubles what it is told (socket(7)).
    connection.set_recv_buffer_size(20_000).unwrap();
    connection.set_send_buffer_size(30_000).unwrap();
    assert_eq!((connection.recv_buffer_size().unwrap(), connection.send_buffer_size().unwrap()), (40_000, 60_000));
    // And it was this socket.
    let socket = connection.into_std().map_err(|(error, _)| error).unwrap();
    assert!(socket.nodelay().unwrap());
}

#[test]
fn a_unix_connection_has_no_tcp_options() {
    let case = Case::start();
    let (server, _accepted) = handing_over(&case, |_| {});
    let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let connection = Connection::from_unix_on(&server.reactor(), ours).unwrap();
    let refused = |what: io::Result<()>| {
        let error = what.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP), "{error}");
    };
    refused(connection.set_nodelay(true));
    refused(connection.nodelay().map(drop));
    refused(connection.set_quickack(true));
    refused(connection.quickack().map(drop));
    refused(connection.set_tcp_user_timeout(Some(SOON)));
    refused(connection.tcp_user_timeout().map(drop));
    connection.set_send_buffer_size(30_000).unwrap();
    assert_eq!(connection.send_buffer_size().unwrap(), 60_000);
}

/// Whoever holds a part of a connection is told the same of it.
#[test]
fn every_part_of_a_connection_knows_whose_it_is() {
    let case = Case::start();
    let (server, accepted) = handing_over(&case, |b| {
        b.listen(loopback(), |_: Connection| async {});
    });
    let (_one, connection) = pair(&server, &accepted);
    let (mut peer, other) = pair(&server, &accepted);
    assert_ne!(connection.id(), other.id());
    let (id, listener) = (connection.id(), connection.listener());
    let facts = [connection.peer_addr().unwrap(), connection.local_addr().unwrap()];
    assert_eq!(facts[1], server.addr());
    let (reader, writer) = connection.into_split();
    assert_eq!([reader.id(), writer.id()], [id, id]);
    assert_eq!([reader.listener(), writer.listener()], [listener, listener]);
    assert!(reader.reactor() == server.reactor() && writer.reactor() == server.reactor());
    assert_eq!([reader.peer_addr().unwrap(), reader.local_addr().unwrap()], facts);
    assert_eq!([writer.peer_addr().unwrap(), writer.local_addr().unwrap()], facts);
    let shared = writer.into_shared(SharedLimits::default());
    assert_eq!(shared.id(), id);
    drop((reader, shared));
    // Drained, the reader knows, also without reading.
    assert!(!other.is_draining());
    let draining = other.draining();
    server.reactor().drain(SOON);
    block_within(draining, SOON).expect("the drain is told");
    assert!(other.is_draining());
    let (reader, writer) = other.into_split();
    assert!(reader.is_draining() && writer.is_draining());
    drop((reader, writer));
    assert_eq!(peer.ending(SOON), Ending::Eof);
}

/// What was staged before the writer was shared goes out first, and without a frame.
#[test]
fn what_was_staged_before_sharing_goes_out() {
    let case = Case::start();
    let (server, accepted) = handing_over(&case, |_| {});
    let (mut peer, mut connection) = pair(&server, &accepted);
    connection.stage(b"staged").unwrap();
    let (_reader, writer) = connection.into_shared(SharedLimits::default());
    assert_eq!(peer.read_exactly(6, SOON), Ok(b"staged".to_vec()));
    block_within(writer.flush(), SOON).expect("nothing waits").unwrap();
}

/// More than there is memory for is refused like more than the limit, and the connection stays as it was.
#[test]
fn space_that_no_machine_has_is_refused() {
    let case = Case::start();
    let (server, accepted) = handing_over(&case, |b| {
        b.config(epoxide::ReactorConfig { max_staged: usize::MAX / 4, ..Default::default() });
    });
    let (mut peer, mut connection) = pair(&server, &accepted);
    connection.stage(b"before").unwrap();
    let most = usize::MAX / 8;
    let refused = connection.try_reserve(most).map(drop).unwrap_err();
    assert_eq!((refused.staged, refused.limit), (6, usize::MAX / 4), "{refused}");
    assert_eq!(connection.spare(most).map(|space| space.len()).unwrap_err(), refused);
    connection.stage(b" and behind").unwrap();
    block_within(connection.flush(), SOON).unwrap().unwrap();
    assert_eq!(peer.read_exactly(17, SOON), Ok(b"before and behind".to_vec()));
}
