//! Accepting when the process has no descriptor left: the reactor neither spins nor forgets the
//! clients that wait in the kernel's queue.

use std::time::Duration;

use epoxide::Connection;
use epoxide_tests_e2e::{Case, Ending, FdLimit, PeerOptions, Server, Unconnected, loopback, stage};

/// ACC-01. Every client socket exists before the limit falls, so only the server runs out. The
/// listener backs off (well under a third of a core), and once descriptors are to be had again
/// everybody is greeted without a further connect.
#[test]
fn a_server_without_descriptors_backs_off_and_serves_everybody_later() {
    let case = Case::start();
    let server = Server::start(&case, |b| {
        b.listen(loopback(), |mut connection: Connection| async move {
            stage(&mut connection, b"hi")?;
            connection.flush().await?;
            connection.read().await.map(|_| ())
        });
    });
    let mut cpu = server.reactor_cpu();
    let clients: Vec<Unconnected> = (0..24).map(|_| Unconnected::new(server.addr(), PeerOptions::default())).collect();

    let limit = FdLimit::lower_to_free(6);
    let mut clients: Vec<_> = clients.into_iter().map(|c| c.connect().unwrap()).collect();
    // sleep: what the first failures cost is over, the steady state begins.
    std::thread::sleep(Duration::from_millis(300));
    let share = cpu.share_over(Duration::from_secs(1)).unwrap();
    let accepted = server.stats().accepted;
    assert!(accepted < 24, "vacuity: all were accepted under the limit");
    assert!(accepted > 0, "vacuity: none was accepted although descriptors were free");
    assert!(share < 0.30, "a starved reactor used {share:.2} of a core");
    drop(limit);

    for (i, client) in clients.iter_mut().enumerate() {
        let greeting = client.read_exactly(2, Duration::from_secs(5));
        assert_eq!(greeting, Ok(b"hi".to_vec()), "client {i} of 24");
    }
    for client in &mut clients {
        client.half_close().unwrap();
        assert_eq!(client.ending(Duration::from_secs(5)), Ending::Eof);
    }
    assert_eq!(server.stats().accepted, 24);
}

/// The kind of EMFILE that ends by itself: a descriptor is given back while the limit stays, and
/// the next waiting client is served.
#[test]
fn a_freed_descriptor_serves_the_next_waiting_client() {
    let case = Case::start();
    let server = Server::start(&case, |b| {
        b.listen(loopback(), |mut connection: Connection| async move {
            stage(&mut connection, b"hi")?;
            connection.flush().await?;
            connection.read().await.map(|_| ())
        });
    });
    let clients: Vec<Unconnected> = (0..12).map(|_| Unconnected::new(server.addr(), PeerOptions::default())).collect();
    let limit = FdLimit::lower_to_free(3);
    let waiting: Vec<_> = clients.into_iter().map(|c| c.connect().unwrap()).collect();
    // Accepted in the order of the queue: each client that leaves makes room for a later one.
    for (i, mut client) in waiting.into_iter().enumerate() {
        let greeting = client.read_exactly(2, Duration::from_secs(8));
        assert_eq!(greeting, Ok(b"hi".to_vec()), "client {i} of 12");
    }
    drop(limit);
    assert_eq!(server.stats().accepted, 12);
}
