//! Setting up: a port that is taken is an error in time, and a failed start closes exactly what it
//! opened.

use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::channel;
use std::time::Duration;

use epoxide_tests_e2e::{Case, Http, Server, http_ok, loopback, our_fds};

/// SET-01. Half-filled descriptor tables once closed number 0 on the way out.
#[test]
fn a_taken_port_fails_the_start_and_closes_nothing_else() {
    let case = Case::start();
    let holder = TcpListener::bind(loopback()).unwrap();
    let taken = holder.local_addr().unwrap();
    let before = our_fds("self").unwrap();
    assert!(before.iter().any(|fd| fd.0 == 0), "vacuity: descriptor 0 is open");
    for reactors in [1, 2] {
        let refused = Server::try_start(&case, |b| {
            b.reactors(reactors).listen(taken, http_ok);
        });
        let error = refused.map(|_| ()).expect_err("the port is taken");
        assert_eq!(error.kind(), ErrorKind::AddrInUse, "{error}");
        assert!(error.to_string().contains(&taken.to_string()), "it does not say where: {error}");
    }
    assert_eq!(our_fds("self").unwrap(), before, "other descriptors than before");
    drop(holder);
}

/// Law 4: REUSEPORT would let two servers share a port in silence; the probe makes it an error.
#[test]
fn a_second_instance_on_the_same_port_is_refused() {
    let case = Case::start();
    let first = Server::start(&case, |b| {
        b.listen(loopback(), http_ok);
    });
    let second = Server::try_start(&case, |b| {
        b.listen(first.addr(), http_ok);
    });
    assert_eq!(second.map(|_| ()).unwrap_err().kind(), ErrorKind::AddrInUse);
    assert_eq!(Http::connect(first.addr()).get().map(|r| r.status), Ok(200));
}

/// Live old connections and TIME_WAIT are no reason to refuse a restart.
#[test]
fn a_restart_on_the_same_port_works_with_old_connections_about() {
    let case = Case::start();
    let first = Server::start(&case, |b| {
        b.listen(loopback(), http_ok);
    });
    let addr = first.addr();
    let mut old = Http::connect(addr);
    assert_eq!(old.get().map(|r| r.status), Ok(200));
    first.stop(Duration::from_millis(200)).unwrap();
    let second = Server::start(&case, |b| {
        b.listen(addr, http_ok);
    });
    assert_eq!(second.addr(), addr);
    assert_eq!(Http::connect(addr).get().map(|r| r.status), Ok(200));
    drop(old);
}

/// When a later listener fails, the earlier ones are closed: their port is free again.
#[test]
fn a_failed_start_frees_the_ports_it_had_bound() {
    let case = Case::start();
    let free = TcpListener::bind(loopback()).unwrap().local_addr().unwrap();
    let holder = TcpListener::bind(loopback()).unwrap();
    let refused = Server::try_start(&case, |b| {
        b.listen(free, http_ok);
        b.listen(holder.local_addr().unwrap(), http_ok);
    });
    assert!(refused.map(|_| ()).is_err());
    assert!(TcpStream::connect(free).is_err(), "the first listener still accepts");
    assert!(TcpListener::bind(free).is_ok(), "the first port is still bound");
}

/// An address that cannot be bound is an error of `build`, not a panic and not a silent skip.
#[test]
fn an_address_of_another_host_is_refused_by_name() {
    let case = Case::start();
    // 192.0.2.0/24 is for documentation (RFC 5737) and never ours.
    let foreign = std::net::SocketAddr::from(([192, 0, 2, 1], 0));
    let refused = Server::try_start(&case, |b| {
        b.listen(foreign, http_ok);
    });
    let error = refused.map(|_| ()).expect_err("not our address");
    assert!(error.to_string().contains("192.0.2.1"), "it does not say where: {error}");
}

/// Every reactor of a runtime serves, and stopping joins them all (the case counts threads).
#[test]
fn several_reactors_start_serve_and_stop() {
    let case = Case::start();
    let (started, starts) = channel();
    let (stopped, stops) = channel();
    let server = Server::start(&case, |b| {
        b.reactors(3);
        b.on_start(move |reactor| {
            let _ = started.send(format!("{:?}", reactor.id()));
        });
        b.on_stop(move |reactor| {
            let _ = stopped.send(format!("{:?}", reactor.id()));
        });
        b.listen(loopback(), http_ok);
    });
    for _ in 0..60 {
        assert_eq!(Http::connect(server.addr()).get().map(|r| r.status), Ok(200));
    }
    assert!(server.wait_quiet());
    server.stop(Duration::from_secs(5)).unwrap();
    let mut started: Vec<_> = starts.try_iter().collect();
    let mut stopped: Vec<_> = stops.try_iter().collect();
    started.sort();
    stopped.sort();
    assert_eq!(started.len(), 3);
    assert_eq!(started, stopped, "one stop hook per reactor");
}

/// One listener on `[::]` serves IPv4 and IPv6 clients, and tells each its own kind of address.
#[test]
fn a_dual_stack_listener_serves_both_families() {
    let case = Case::start();
    if TcpListener::bind("[::1]:0").is_err() {
        println!("skipped: no IPv6 on this host");
        return;
    }
    let server = Server::start(&case, |b| {
        b.listen(std::net::SocketAddr::from(([0_u16; 8], 0)), http_ok);
    });
    let port = server.addr().port();
    for host in [std::net::IpAddr::from([127, 0, 0, 1]), "::1".parse().unwrap()] {
        let response = Http::connect((host, port).into()).get();
        assert_eq!(response.map(|r| r.status), Ok(200), "{host}");
    }
}
