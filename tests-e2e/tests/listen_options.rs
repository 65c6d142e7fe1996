//! Options of a listener that cannot work are refused before anything is bound, by name; those at their limits listen.

use std::cell::Cell;
use std::io::{self, ErrorKind};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use epoxide::{Connection, ListenAddr, ListenOptions, Listener};
use epoxide_tests_e2e::{Case, Http, Peer, Server, block_within, http_ok, loopback};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

const SOON: Duration = Duration::from_secs(10);

/// `build` and `Listener::bind` refuse it, and the text names the field, what was asked for and what may be.
fn refused(case: &Case, addr: &str, options: &ListenOptions, field: &str, value: &str, may_be: &str) {
    let addr = ListenAddr::new(addr).options(options.clone());
    let built = Server::try_start(case, |b| {
        b.listen(addr.clone(), http_ok);
    });
    let server = Server::start(case, |_| {});
    let bound = block_within(Listener::bind_on(&server.reactor(), addr), SOON).expect("it is refused at once");
    for error in [built.map(|_| ()).expect_err(field), bound.map(|_| ()).expect_err(field)] {
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{error}");
        let text = error.to_string();
        assert!(text.contains(&format!("ListenOptions::{field} is {value}")) && text.contains(may_be), "{text}");
    }
}

#[test]
fn options_that_cannot_work_are_refused_by_name() {
    let case = Case::start();
    let path = std::env::temp_dir().join(format!("epoxide-options-{}", std::process::id()));
    let path = format!("unix:{}", path.display());
    let (v4, v6, name, hidden) = ("127.0.0.1:0", "[::1]:0", "localhost:0", "unix:@epoxide-options");
    let default = ListenOptions::default;
    for addr in [v4, v6, name, &path, hidden] {
        for backlog in [-1, i32::MIN] {
            let value = backlog.to_string();
            refused(&case, addr, &ListenOptions { backlog, ..default() }, "backlog", &value, "0 or more");
        }
        let nobody = ListenOptions { max_connections: Some(0), ..default() };
        refused(&case, addr, &nobody, "max_connections", "0", "1 or more");
    }
    for (mode, value) in [(0o1000, "0o1000"), (0o10000, "0o10000"), (u32::MAX, "0o37777777777")] {
        refused(&case, &path, &ListenOptions { mode: Some(mode), ..default() }, "mode", value, "0 to 0o777");
    }
    for addr in [v4, v6, name, hidden] {
        refused(&case, addr, &ListenOptions { mode: Some(0o660), ..default() }, "mode", "0o660", "unix path");
    }
    for v6only in [true, false] {
        for addr in [v4, &path, hidden] {
            let options = ListenOptions { v6only: Some(v6only), ..default() };
            refused(&case, addr, &options, "v6only", &v6only.to_string(), "IPv6");
        }
    }
    for addr in [&path, hidden] {
        refused(&case, addr, &ListenOptions { share_port: true, ..default() }, "share_port", "true", "TCP");
    }
}

/// listen(2) takes a backlog of zero: the kernel keeps room for one.
#[test]
fn options_at_their_limits_listen() {
    let case = Case::start();
    let path = std::env::temp_dir().join(format!("epoxide-limits-{}", std::process::id()));
    let default = ListenOptions::default;
    let server = Server::start(&case, |b| {
        for backlog in [0, i32::MAX] {
            b.listen(ListenAddr::new(loopback()).options(ListenOptions { backlog, ..default() }), http_ok);
        }
        let all = ListenOptions { mode: Some(0o777), ..default() };
        b.listen(ListenAddr::new(path.as_path()).options(all), http_ok);
    });
    for addr in server.addrs() {
        assert_eq!(Http::connect(*addr).get().map(|response| response.status), Ok(200), "{addr}");
    }
    std::os::unix::net::UnixStream::connect(&path).unwrap();
}

/// A socket of somebody else's that nobody called listen(2) on: connected, or bound.
#[test]
fn a_ready_made_socket_that_does_not_listen_is_refused() {
    let case = Case::start();
    let listener = TcpListener::bind(loopback()).unwrap();
    let connected = OwnedFd::from(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
    let bound = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
    for fd in [connected, bound] {
        let copy = TcpListener::from(fd.try_clone().unwrap());
        let refused = Server::try_start(&case, |b| {
            b.listen_on(copy, http_ok);
        });
        let by_hand = epoxide::block_on(async move { epoxide::Listener::from_std(fd) });
        for error in [refused.expect_err("it does not listen"), by_hand.expect_err("it does not listen")] {
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(error.to_string().contains("does not listen"), "{error}");
        }
    }
}

/// Two that both say so share a port, and connections are spread over them; one that does not is refused beside them.
#[test]
fn servers_that_share_a_port_are_both_served_from_it() {
    let case = Case::start();
    let shared = |addr| {
        let options = ListenOptions { share_port: true, ..ListenOptions::default() };
        Server::start(&case, |b| {
            b.reactors(2);
            b.listen(ListenAddr::new(addr).options(options), http_ok);
        })
    };
    let first = shared(loopback());
    let second = shared(first.addr());
    let alone = Server::try_start(&case, |b| {
        b.listen(first.addr(), http_ok);
    });
    assert_eq!(alone.map(|_| ()).expect_err("the port is taken").kind(), ErrorKind::AddrInUse);
    // The kernel goes by a hash of the ports: that one of the two gets none of 100 is a matter of 1 in 2^99.
    let both = (0..100).any(|_| {
        assert_eq!(Http::connect(first.addr()).get().map(|response| response.status), Ok(200));
        first.stats().accepted > 0 && second.stats().accepted > 0
    });
    assert!(both, "{} and {}", first.stats().accepted, second.stats().accepted);
}

/// `listen_with` builds a handler on each reactor, which may keep what must not leave its thread.
#[test]
fn a_handler_of_each_reactor_may_hold_rc_state() {
    let case = Case::start();
    let server = Server::start(&case, |b| {
        b.reactors(2);
        b.listen_with(loopback(), |reactor| {
            let (home, served) = (reactor.id(), Rc::new(Cell::new(0_u32)));
            move |mut connection: Connection| {
                let served = Rc::clone(&served);
                async move {
                    served.set(served.get() + 1);
                    connection.send_all(format!("{home} {}\n", served.get()).as_bytes()).await
                }
            }
        });
    });
    let mut said: Vec<(usize, u32)> = (0..60)
        .map(|_| {
            let (text, _) = Peer::connect(server.addr()).read_to_end(SOON);
            let text = String::from_utf8(text).unwrap();
            let (home, served) = text.trim().split_once(' ').expect("two numbers");
            (home.parse().unwrap(), served.parse().unwrap())
        })
        .collect();
    said.sort_unstable();
    for home in 0..2 {
        let counts: Vec<u32> = said.iter().filter(|(of, _)| *of == home).map(|(_, served)| *served).collect();
        assert!(!counts.is_empty() && counts.iter().copied().eq(1..=counts.len() as u32), "reactor {home}: {counts:?}");
    }
}
