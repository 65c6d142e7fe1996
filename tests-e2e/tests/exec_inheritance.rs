//! Descriptors across exec: a child process inherits none of the runtime's.

use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use epoxide::Connection;
use epoxide_tests_e2e::{Case, Peer, Server, loopback, our_fds};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

/// A child that is ended and waited for whatever happens.
struct Sleeper(Child);

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// EXE-01. Compared by link target, which for sockets names the inode. Epoll and eventfd all have
/// one target, so for these the child must have none at all.
#[test]
fn a_child_process_inherits_no_descriptor_of_the_runtime() {
    let case = Case::start();
    let before = our_fds("self").unwrap();
    let (seen, seen_rx) = channel();
    let server = Server::start(&case, |b| {
        b.listen(loopback(), move |mut connection: Connection| {
            let seen = seen.clone();
            async move {
                while connection.read().await?.is_some() {
                    let _ = seen.send(());
                }
                std::io::Result::Ok(())
            }
        });
    });
    let mut peer = Peer::connect(server.addr());
    peer.send(b"x").unwrap();
    seen_rx.recv_timeout(Duration::from_secs(10)).expect("the connection is accepted");
    let leaky = socket(AddressFamily::Inet, SockType::Stream, SockFlag::empty(), None).unwrap();
    let ours = our_fds("self").unwrap();
    let fresh: Vec<_> = ours.iter().filter(|fd| !before.contains(fd)).collect();
    let of_kind = |kind: &str| fresh.iter().filter(|fd| fd.1.contains(kind)).count();
    // Vacuity: listener, accepted connection, client, control; at least one epoll and eventfd.
    assert!(of_kind("socket:") >= 4, "{fresh:?}");
    assert!(of_kind("eventpoll") >= 1 && of_kind("eventfd") >= 1, "{fresh:?}");

    let child = Command::new("sleep").arg("30").stdin(Stdio::null()).spawn();
    let child = Sleeper(child.expect("sleep(1) is there"));
    let inherited = our_fds(&child.0.id().to_string()).unwrap();
    let control =
        fresh.iter().filter(|fd| fd.1.contains("socket:") && inherited.iter().any(|i| i.1 == fd.1)).collect::<Vec<_>>();
    let leaky_number = std::os::fd::AsRawFd::as_raw_fd(&leaky);
    assert_eq!(control.len(), 1, "only the control may be inherited: {control:?}");
    assert_eq!(control[0].0, leaky_number, "the control was not inherited");
    let anonymous: Vec<_> = inherited.iter().filter(|fd| fd.1.contains("anon_inode")).collect();
    assert!(anonymous.is_empty(), "inherited: {anonymous:?}");
}
