//! Accepting by hand: on a reactor, from other threads, as a stream; and how it ends.

use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::pin::pin;
use std::time::Duration;

use epoxide::{Connection, ListenAddr, ListenOptions, Listener, ReactorHandle};
use epoxide_tests_e2e::{
    Case, Ending, Parker, Peer, PeerOptions, Server, Unconnected, block_within, free_fd_limit, loopback, poll_once,
    wait_until,
};
use futures_core::Stream;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

const SOON: Duration = Duration::from_secs(10);

/// Starts the process-wide timer thread, which stays: it is no test's leak.
fn start() -> Case {
    block_within(epoxide::time::sleep(Duration::from_millis(1)), SOON).expect("a timer fires");
    Case::start()
}

fn idle_server(case: &Case) -> Server {
    Server::start(case, |_| {})
}

fn bound(reactor: &ReactorHandle) -> (Listener, SocketAddr) {
    let listener = block_within(Listener::bind_on(reactor, loopback()), SOON).unwrap().unwrap();
    let addr = listener.local_addr().unwrap().ip().unwrap();
    (listener, addr)
}

async fn greet(mut connection: Connection) -> io::Result<()> {
    connection.send_all(b"hi").await?;
    connection.read().await.map(drop)
}

fn greeted(peer: &mut Peer) {
    assert_eq!(peer.read_exactly(2, SOON), Ok(b"hi".to_vec()));
}

#[test]
fn a_loop_on_a_reactor_serves_its_clients() {
    let case = start();
    let server = idle_server(&case);
    let (tell, told) = std::sync::mpsc::channel();
    let serving = server.reactor().spawn(async move {
        let listener = Listener::bind(("127.0.0.1".parse::<std::net::IpAddr>().unwrap(), 0)).await?;
        let _ = tell.send(listener.local_addr()?.ip().unwrap());
        for _ in 0..100 {
            let (connection, peer) = listener.accept().await?;
            assert_eq!(peer.ip(), connection.peer_addr().ok());
            assert!(connection.nodelay()?);
            epoxide::spawn_local(greet(connection)).detach();
        }
        io::Result::Ok(())
    });
    let addr = told.recv_timeout(SOON).unwrap();
    let mut peers: Vec<_> = (0..100).map(|_| Peer::connect(addr)).collect();
    peers.iter_mut().for_each(greeted);
    block_within(serving.unwrap(), SOON).unwrap().unwrap().unwrap();
    // The listener is dropped with its task: the port is closed.
    assert!(wait_until(SOON, || {
        Unconnected::new(addr, PeerOptions::default())
            .connect()
            .is_err_and(|e| e.kind() == ErrorKind::ConnectionRefused)
    }));
}

/// Two threads that are no reactor's accept from one listener; nobody is served twice or forgotten.
#[test]
fn threads_share_a_listener() {
    let case = start();
    let server = idle_server(&case);
    let (listener, addr) = bound(&server.reactor());
    std::thread::scope(|scope| {
        let accepting: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let (connection, _) = block_within(listener.accept(), SOON).expect("a client").unwrap();
                        assert_eq!(connection.reactor(), server.reactor());
                        server.reactor().spawn(greet(connection)).unwrap().detach();
                    }
                })
            })
            .collect();
        let mut peers: Vec<_> = (0..100).map(|_| Peer::connect(addr)).collect();
        peers.iter_mut().for_each(greeted);
        for thread in accepting {
            thread.join().unwrap();
        }
    });
    assert_eq!(server.stats().adopted, 100);
}

#[test]
fn a_dropped_accept_loses_no_connection() {
    let case = start();
    let server = idle_server(&case);
    let (listener, addr) = bound(&server.reactor());
    let parker = Parker::new();
    for _ in 0..50 {
        {
            let mut accept = pin!(listener.accept());
            assert!(poll_once(accept.as_mut(), &parker).is_pending());
        }
        let mut peer = Peer::connect(addr);
        let (connection, _) = block_within(listener.accept(), SOON).expect("still there").unwrap();
        let _greeting = server.reactor().spawn(greet(connection)).unwrap();
        greeted(&mut peer);
    }
}

/// The stream gives connections until the drain, then ends; a plain accept says why.
#[test]
fn a_drain_ends_the_stream_and_accept() {
    let case = start();
    let server = idle_server(&case);
    let (streamed, addr) = bound(&server.reactor());
    let (plain, _) = bound(&server.reactor());
    let serving = server.reactor().spawn(async move {
        let mut incoming = streamed.incoming();
        let mut served = 0;
        while let Some(connection) = poll_fn(|cx| pin!(&mut incoming).poll_next(cx)).await {
            let connection = connection.expect("no error before the end");
            epoxide::spawn_local(greet(connection)).detach();
            served += 1;
        }
        served
    });
    let mut peers: Vec<_> = (0..20).map(|_| Peer::connect(addr)).collect();
    peers.iter_mut().for_each(greeted);
    // Its handler is busy, so the drain waits for it while accepting ends.
    let busy = peers.pop();
    drop(peers);
    let draining = server.runtime().shutdown(SOON);
    let error = block_within(plain.accept(), SOON).expect("ends").expect_err("drains");
    assert_eq!(error.kind(), ErrorKind::NotConnected, "{error}");
    assert_eq!(block_within(serving.unwrap(), SOON).unwrap().unwrap(), 20);
    drop(busy);
    assert!(block_within(draining, SOON).expect("drained").graceful);
    let late = block_within(Listener::bind_on(&server.reactor(), loopback()), SOON).unwrap();
    assert_eq!(late.expect_err("stopped").kind(), ErrorKind::ConnectionAborted);
}

#[test]
fn a_taken_port_and_a_bad_address_are_errors() {
    let case = start();
    let server = idle_server(&case);
    let (_listener, addr) = bound(&server.reactor());
    let bind = |addr: String| block_within(Listener::bind_on(&server.reactor(), addr), SOON).unwrap();
    let taken = bind(addr.to_string()).expect_err("taken");
    assert_eq!(taken.kind(), ErrorKind::AddrInUse);
    assert!(taken.to_string().contains(&addr.to_string()), "{taken}");
    assert_eq!(bind("nonsense".to_owned()).expect_err("no address").kind(), ErrorKind::InvalidInput);
    assert!(bind("localhost:0".to_owned()).is_ok(), "a name is looked up");
    let here = block_within(Listener::bind(loopback()), SOON).unwrap();
    assert_eq!(here.expect_err("no reactor here").kind(), ErrorKind::NotConnected);
}

/// Without descriptors accepting pauses, and goes on by itself.
#[test]
fn accepting_without_descriptors_goes_on_later() {
    let case = start();
    let server = idle_server(&case);
    let (listener, addr) = bound(&server.reactor());
    let clients: Vec<_> = (0..4).map(|_| Unconnected::new(addr, PeerOptions::default()).connect().unwrap()).collect();
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, free_fd_limit(0).unwrap(), hard).unwrap();
    let starved = block_within(listener.accept(), Duration::from_millis(600));
    let tries = server.stats().accept_starved;
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
    assert!(starved.is_none(), "nothing could be accepted");
    assert!((1..=4).contains(&tries), "{tries} tries in 600 ms: it neither spins nor gives up");
    for mut client in clients {
        let (connection, _) = block_within(listener.accept(), SOON).unwrap().unwrap();
        let _greeting = server.reactor().spawn(greet(connection)).unwrap();
        greeted(&mut client);
    }
}

/// Past the limit nothing is accepted; the next one is once somebody has gone.
#[test]
fn a_full_listener_accepts_again_when_somebody_has_gone() {
    let case = start();
    let server = idle_server(&case);
    let options = ListenOptions { max_connections: Some(2), ..ListenOptions::default() };
    let addr = ListenAddr::new(loopback()).options(options);
    let listener = block_within(Listener::bind_on(&server.reactor(), addr), SOON).unwrap().unwrap();
    let addr = listener.local_addr().unwrap().ip().unwrap();
    let mut peers: Vec<_> = (0..3).map(|_| Peer::connect(addr)).collect();
    let accept = || block_within(listener.accept(), SOON).expect("accepted").unwrap().0;
    let (first, second) = (accept(), accept());
    assert!(block_within(listener.accept(), Duration::from_millis(400)).is_none(), "both places are taken");
    assert!(server.stats().accept_limited > 0);
    peers.remove(0);
    drop(first);
    let third = accept();
    drop((second, third));
}

#[test]
fn a_std_listener_becomes_one() {
    let case = start();
    let server = idle_server(&case);
    let std = TcpListener::bind(loopback()).unwrap();
    let addr = std.local_addr().unwrap();
    let serving = server.reactor().spawn(async move {
        let listener = Listener::from_std(std)?;
        let (mut connection, _) = listener.accept().await?;
        connection.send_all(b"hi").await?;
        connection.shutdown().await
    });
    let mut peer = Peer::connect(addr);
    assert_eq!(peer.read_to_end(SOON), (b"hi".to_vec(), Ending::Eof));
    block_within(serving.unwrap(), SOON).unwrap().unwrap().unwrap();
}

/// A unix path is bound, served and unlinked in the same way.
#[test]
fn a_unix_path_is_listened_on_by_hand() {
    let case = start();
    let server = idle_server(&case);
    let path = std::env::temp_dir().join(format!("epoxide-listen-{}", std::process::id()));
    let listener = block_within(Listener::bind_on(&server.reactor(), &path), SOON).unwrap().unwrap();
    assert_eq!(listener.local_addr().unwrap().path(), Some(&*path));
    let mut ours = block_within(server.reactor().connect(&path), SOON).unwrap().unwrap();
    let (mut theirs, peer) = block_within(listener.accept(), SOON).unwrap().unwrap();
    assert_eq!(peer.to_string(), "unix:");
    block_within(theirs.send_all(b"hi"), SOON).unwrap().unwrap();
    let got = block_within(ours.read(), SOON).unwrap().unwrap();
    assert_eq!(got.as_deref(), Some(&b"hi"[..]));
    drop(listener);
    assert!(!path.exists());
}
