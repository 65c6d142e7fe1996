//! The words of the errors, their kinds as `io::Error`, and what they lead on to: each says what to do, and none loses its cause.

use std::error::Error;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6, TcpListener};
use std::path::Path;

use epoxide::workers::SubmitError;
use epoxide::{
    Address, Clock, CloseReason, ConnectAddr, JoinError, ListenAddr, PostError, ReactorConfig, Refusal, RehomeError,
    Runtime, block_on, spawn_local,
};

const RESET: CloseReason = CloseReason::PeerReset { errno: 104 };

/// Text, kind, and whether a source is named.
fn check(error: impl Into<io::Error>, kind: ErrorKind, words: &[&str]) {
    let error = error.into();
    let text = error.to_string();
    assert_eq!(error.kind(), kind, "{text}");
    for word in words {
        assert!(text.contains(word), "'{text}' does not say '{word}'");
    }
}

#[test]
fn a_move_that_was_refused_says_why() {
    let texts = [
        (RehomeError::Stopped, "the reactor has stopped"),
        (RehomeError::Full, "max_posts"),
        (RehomeError::Ended(RESET), "reset"),
        (RehomeError::Io(io::Error::from_raw_os_error(24)), "os error 24"),
    ];
    for (error, word) in texts {
        let text = error.to_string();
        assert!(text.starts_with("the connection was not moved: ") && text.contains(word), "{text}");
    }
    assert!(RehomeError::Stopped.source().is_none() && RehomeError::Full.source().is_none());
    assert!(RehomeError::Ended(RESET).source().is_some_and(|source| source.is::<CloseReason>()));
    assert!(RehomeError::Io(ErrorKind::Other.into()).source().is_some_and(|source| source.is::<io::Error>()));
    check(RehomeError::Stopped, ErrorKind::ConnectionAborted, &["has stopped"]);
    check(RehomeError::Full, ErrorKind::QuotaExceeded, &["max_posts"]);
    check(RehomeError::Ended(RESET), ErrorKind::ConnectionReset, &["reset"]);
    let io = io::Error::from(RehomeError::Io(io::Error::from_raw_os_error(24)));
    assert_eq!(io.raw_os_error(), Some(24), "the errno is not lost");
    assert_eq!(CloseReason::of(&RehomeError::Ended(RESET).into()), Some(RESET));
}

#[test]
fn what_was_handed_over_in_vain_comes_back() {
    check(PostError::Full(7), ErrorKind::QuotaExceeded, &["max_posts"]);
    check(PostError::Stopped(7), ErrorKind::ConnectionAborted, &["has stopped"]);
    let error = io::Error::from(PostError::Full(String::from("payload")));
    assert_eq!(error.downcast::<PostError<String>>().unwrap().into_inner(), "payload");
    // The payload may be anything: it is not shown.
    assert_eq!(format!("{:?} {:?}", PostError::Full(7), PostError::Stopped(7)), "Full(..) Stopped(..)");
    for (error, word) in [(SubmitError::PoolFull(7), "max_overflow"), (SubmitError::Stopped(7), "stopped")] {
        assert!(error.to_string().contains(word), "{error}");
        assert_eq!(error.into_inner(), 7);
    }
    assert_eq!(format!("{:?} {:?}", SubmitError::PoolFull(7), SubmitError::Stopped(7)), "PoolFull(..) Stopped(..)");
}

#[test]
fn a_frame_that_was_refused_names_its_limit() {
    let texts = [
        (Refusal::Frames, "SharedLimits::frames"),
        (Refusal::Bytes, "SharedLimits::bytes"),
        (Refusal::Age, "SharedLimits::age"),
        (Refusal::Closed(CloseReason::Timeout(Clock::Send)), "ended"),
    ];
    for (refusal, word) in texts {
        assert!(refusal.to_string().contains(word), "{refusal}");
    }
}

#[test]
fn a_task_without_a_result_says_why() {
    let panicked = block_on(async { spawn_local(async { panic!("a bug") }).await });
    let Err(JoinError::Panic(payload)) = &panicked else { panic!("{panicked:?}") };
    assert_eq!(format!("{payload:?}"), "PanicPayload(\"a bug\")");
    assert_eq!(format!("{panicked:?}"), "Err(Panic(\"the task panicked: a bug\"))");
    check(panicked.unwrap_err(), ErrorKind::Other, &["panicked", "a bug"]);
    let aborted = block_on(async {
        let task = spawn_local(std::future::pending::<()>());
        task.abort_handle().abort();
        task.await
    });
    assert_eq!(format!("{aborted:?}"), "Err(Aborted)");
    check(aborted.unwrap_err(), ErrorKind::Other, &["aborted"]);
    check(JoinError::Stopped, ErrorKind::Other, &["stopped before it was done"]);
    check(JoinError::PoolFull, ErrorKind::Other, &["max_blocking", "max_overflow", "gives the job back"]);
    assert_eq!(format!("{:?} {:?}", JoinError::Stopped, JoinError::PoolFull), "Stopped PoolFull");
    // The payload itself, for whoever goes on with the panic.
    let Err(JoinError::Panic(payload)) = block_on(async { spawn_local(async { std::panic::panic_any(42) }).await })
    else {
        panic!("it panics")
    };
    assert_eq!(payload.into_inner().downcast_ref(), Some(&42));
}

/// Addresses of every form come out as they were given, and what is none says what one looks like.
#[test]
fn addresses_of_every_form() {
    let (v4, v6): (SocketAddrV4, SocketAddrV6) = ("127.0.0.1:80".parse().unwrap(), "[::1]:80".parse().unwrap());
    assert!(format!("{:?}", ConnectAddr::from(v4)).contains("127.0.0.1:80"));
    assert!(format!("{:?}", ConnectAddr::from(v6)).contains("[::1]:80"));
    assert!(format!("{:?}", ConnectAddr::from(Address::Ip(v4.into()))).contains("127.0.0.1:80"));
    let unix = std::os::unix::net::SocketAddr::from_pathname("/run/a.sock").unwrap();
    assert!(format!("{:?}", ConnectAddr::from(Address::Unix(unix))).contains("/run/a.sock"));
    let mut builder = Runtime::builder();
    builder.reactors(1).listen(SocketAddrV4::new([127, 0, 0, 1].into(), 0), |_| async {});
    assert_eq!(builder.build().unwrap().local_addrs()[0].ip(), SocketAddr::from(v4).ip());
    let refused = |addr: ListenAddr| {
        let mut builder = Runtime::builder();
        builder.reactors(1).listen(addr, |_| async {});
        builder.build().map(drop).unwrap_err()
    };
    let v4 = TcpListener::bind("127.0.0.1:0").unwrap();
    let SocketAddr::V4(taken) = v4.local_addr().unwrap() else { unreachable!("it was bound to one") };
    check(refused(taken.into()), ErrorKind::AddrInUse, &[&taken.to_string()]);
    // Where there is no IPv6, that is the error.
    if let Ok(v6) = TcpListener::bind("[::1]:0") {
        let SocketAddr::V6(taken) = v6.local_addr().unwrap() else { unreachable!("it was bound to one") };
        check(refused(taken.into()), ErrorKind::AddrInUse, &[&taken.to_string()]);
    }
    let long = format!("/{}", "x".repeat(200));
    check(refused(Path::new(&long).into()), ErrorKind::InvalidInput, &["cannot listen on", "xxx"]);
    check(refused("nobody.invalid:80".into()), ErrorKind::InvalidInput, &["nobody.invalid:80", "127.0.0.1:8080"]);
    check(refused("nonsense".into()), ErrorKind::InvalidInput, &["nonsense", "127.0.0.1:8080"]);
}

/// What a program logs with `{:?}` shows what it is and never what went through it.
#[test]
fn nothing_shows_its_contents() {
    const SECRET: &str = "s3cr3t";
    let secret = |shown: String| {
        assert!(!shown.contains(SECRET) && !shown.contains("115, 51, 99"), "{shown}");
        shown
    };
    block_on(async {
        let (mut peer, ours) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut connection = epoxide::Connection::from_unix(ours).unwrap();
        io::Write::write_all(&mut peer, SECRET.as_bytes()).unwrap();
        let received = connection.read().await.unwrap().unwrap();
        assert_eq!(&received[..], SECRET.as_bytes());
        connection.stage(SECRET.as_bytes()).unwrap();
        assert!(secret(format!("{connection:?}")).contains("Connection"));
        secret(format!("{:?}", connection.close_handle()));
        secret(format!("{:?}", connection.send_all(SECRET.as_bytes())));
        secret(format!("{:?}", connection.try_reserve(9).unwrap()));
        secret(format!("{:?}", connection.reactor()));
        secret(format!("{:?}", connection.draining()));
        let (reader, writer) = connection.into_shared(Default::default());
        secret(format!("{reader:?} {writer:?} {:?}", writer.closed()));
        let task = spawn_local(async { SECRET });
        secret(format!("{task:?} {:?}", task.abort_handle()));
        assert_eq!(task.await.unwrap(), SECRET);
    });
    let mut builder = Runtime::builder();
    builder.reactors(1).config(ReactorConfig::default()).listen("127.0.0.1:0", |_| async {});
    assert!(format!("{builder:?}").contains("listeners: 1"));
    let runtime = builder.build().unwrap();
    assert!(format!("{runtime:?}").contains("127.0.0.1"));
    assert!(format!("{:?}", runtime.handle().workers()).starts_with("Workers"));
    let mut reactor = epoxide::Reactor::builder();
    reactor.listen("127.0.0.1:0", |_| async {});
    let reactor = reactor.build().unwrap();
    assert!(format!("{reactor:?}").contains("127.0.0.1") && reactor.addresses().len() == 1);
}
