//! One attempt to connect, and several side by side.
//!
//! State: the body of the connection to be, with the flush word in Blocked: the edge that decides the connect claims the
//! flush, finds nothing queued, and wakes the writer, who is this future. Thread class: any thread. Laws: 3, 5 (owned from
//! the first moment; given up, it is closed), 11 (SO_ERROR tells), 12 (stop settles it through the flush word too).

use crate::conn::body::{Body, ends};
use crate::conn::connect_addr::ConnectOptions;
use crate::conn::connection::Connection;
use crate::conn::ending;
use crate::exec::home::Home;
use crate::id::ListenerId;
use crate::stats::Count;
use crate::sync::plain::Ordering;
use crate::sys;
use crate::sys::error::SysError;
use crate::sys::socket::ConnectSetup;
use crate::time::{Sleep, sleep};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::net;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// See the module's text.
pub(super) struct Attempt {
    /// `None` once it is decided.
    body: Option<Arc<Body>>,
    addr: SocketAddr,
    nodelay: bool,
}

impl Attempt {
    /// Fails at once when the kernel does, or when the reactor takes nothing more.
    pub(super) fn start(home: &Arc<Home>, addr: SocketAddr, options: &ConnectOptions) -> io::Result<Self> {
        // A place first: without one nothing is begun.
        let admission = home.admit().map_err(|why| SysError::wrap("connect to", addr, why.into()))?;
        let (socket, in_progress) = sys::socket::connect_start(addr, setup(options))?;
        let body = Arc::new(Body::to_be_adopted(socket, home.clone(), ListenerId::OUTBOUND, in_progress));
        admission.adopt(body.clone());
        Ok(Self { body: Some(body), addr, nodelay: options.nodelay })
    }

    /// The edge has come, or the connection was ended by the reactor.
    fn decided(&self, body: &Arc<Body>) -> io::Result<()> {
        // Both are asked: an error is told only once, and who else took it may have left a socket without a peer.
        let told = match sys::socket::take_error(body.as_fd()) {
            Ok(None) => sys::socket::peer_addr(body.as_fd()).map(drop),
            Ok(Some(error)) | Err(error) => Err(error),
        };
        // The reason last: whoever ends a connection stores it before the socket shows anything.
        let result = body.reason().map_or(told, |reason| Err(reason.into()));
        result.map_err(|error| SysError::wrap("connect to", self.addr, error))
    }
}

impl Future for Attempt {
    type Output = io::Result<Connection>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let body = self.body.as_ref().expect("an attempt is not polled once it is decided");
        if body.has_ended(ends::CONNECTING) {
            // Register, then look: whoever makes the word idle, or closes it, looks for a waiter afterwards.
            body.set_writer(cx);
            if !body.flush.is_idle() && !body.flush.is_closed() {
                return Poll::Pending;
            }
            self.decided(body)?;
            body.forget_writer();
            body.ends.fetch_and(!ends::CONNECTING, Ordering::AcqRel);
        }
        body.home.count(Count::Connected, 1);
        if self.nodelay {
            // A reset in the meantime is the only way this can fail; the first recv will say so.
            let _ = sys::socket::set_nodelay(body.as_fd(), true);
        }
        Poll::Ready(Ok(Connection::new(self.body.take().expect("looked at above"))))
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if let Some(body) = self.body.take() {
            ending::abandon(&body);
        }
    }
}

fn setup(options: &ConnectOptions) -> ConnectSetup {
    ConnectSetup {
        local: options.local_addr,
        recv_buffer: options.recv_buffer_size,
        send_buffer: options.send_buffer_size,
    }
}

/// A unix connect is decided at once.
pub(super) fn unix(home: &Arc<Home>, addr: &net::SocketAddr, options: &ConnectOptions) -> io::Result<Connection> {
    if let Some(local) = options.local_addr {
        let why = format!("a unix socket is not of the family of the local address {local}");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    let admission = home.admit()?;
    let socket = sys::socket::unix_connect(addr, setup(options))?;
    let body = Arc::new(Body::to_be_adopted(socket, home.clone(), ListenerId::OUTBOUND, false));
    admission.adopt(body.clone());
    home.count(Count::Connected, 1);
    Ok(Connection::new(body))
}

/// Tries the addresses in turn, each `attempt_delay` after the one before or as soon as one failed. The first that
/// connects is taken; the others are closed. Otherwise the last error.
pub(super) async fn race(home: &Arc<Home>, addrs: Vec<SocketAddr>, options: &ConnectOptions) -> io::Result<Connection> {
    let mut race = Race { waiting: addrs.into(), running: Vec::new(), next: None, error: None };
    poll_fn(|cx| race.poll(cx, home, options)).await
}

struct Race {
    waiting: VecDeque<SocketAddr>,
    running: Vec<Attempt>,
    /// When the next address is due.
    next: Option<Sleep>,
    error: Option<io::Error>,
}

impl Race {
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        home: &Arc<Home>,
        options: &ConnectOptions,
    ) -> Poll<io::Result<Connection>> {
        loop {
            let mut due = self.next.as_mut().is_none_or(|next| Pin::new(next).poll(cx).is_ready());
            let mut index = 0;
            while let Some(attempt) = self.running.get_mut(index) {
                match Pin::new(attempt).poll(cx) {
                    Poll::Ready(Ok(connection)) => {
                        self.running.remove(index);
                        self.running.clear();
                        return Poll::Ready(Ok(connection));
                    }
                    Poll::Ready(Err(error)) => {
                        self.running.remove(index);
                        self.error = Some(error);
                        due = true;
                    }
                    Poll::Pending => index += 1,
                }
            }
            if self.waiting.is_empty() && self.running.is_empty() {
                let none = || io::Error::new(io::ErrorKind::InvalidInput, "there was no address to try");
                return Poll::Ready(Err(self.error.take().unwrap_or_else(none)));
            }
            if !due {
                return Poll::Pending;
            }
            let Some(addr) = self.waiting.pop_front() else { return Poll::Pending };
            self.next = match Attempt::start(home, addr, options) {
                Ok(attempt) => {
                    self.running.push(attempt);
                    Some(sleep(options.attempt_delay))
                }
                Err(error) => {
                    self.error = Some(error);
                    // The next address is due at once.
                    None
                }
            };
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::exec::local;
    use crate::runtime::single::block_on;
    use crate::sys::socket::{connect_start, local_addr, tcp_listener};
    use std::os::fd::OwnedFd;
    use std::time::{Duration, Instant};

    fn any() -> SocketAddr {
        ([127, 0, 0, 1], 0).into()
    }

    /// A listener with its queue full answers no SYN; another one does.
    fn stuck() -> (SocketAddr, Vec<OwnedFd>) {
        let listener = tcp_listener(any(), 0, false, None).unwrap();
        let addr = local_addr(listener.as_fd()).unwrap();
        let filler = connect_start(addr, ConnectSetup::default()).unwrap().0;
        // Its place in the queue is taken once the handshake is over.
        while sys::socket::tcp_state(filler.as_fd()).unwrap() != sys::socket::ESTABLISHED {
            std::thread::yield_now();
        }
        (addr, vec![listener, filler])
    }

    fn race_on(addrs: Vec<SocketAddr>, delay: Duration) -> io::Result<SocketAddr> {
        let options = ConnectOptions { attempt_delay: delay, ..ConnectOptions::default() };
        block_on(async move {
            let home = local::home().expect("block_on runs a reactor");
            race(&home, addrs, &options).await.and_then(|connection| connection.peer_addr())
        })
    }

    #[test]
    fn an_address_that_does_not_answer_holds_the_next_one_up_for_the_delay_only() {
        let (silent, _held) = stuck();
        let listener = tcp_listener(any(), 8, false, None).unwrap();
        let good = local_addr(listener.as_fd()).unwrap();
        let delay = Duration::from_millis(30);
        let begun = Instant::now();
        assert_eq!(race_on(vec![silent, good], delay).unwrap(), good);
        assert!(begun.elapsed() >= delay, "the second attempt began early");
        // The first that answers wins, also when it was tried last of many.
        assert_eq!(race_on(vec![silent, silent, silent, good], Duration::ZERO).unwrap(), good);
    }

    #[test]
    fn a_refused_address_holds_nobody_up_and_the_last_error_is_told() {
        let listener = tcp_listener(any(), 8, false, None).unwrap();
        let good = local_addr(listener.as_fd()).unwrap();
        // Port 1 of an address of loopback that nobody uses.
        let refused = SocketAddr::from(([127, 3, 2, 1], 1));
        // With an hour's delay only the failure can have made the next one due.
        let hour = Duration::from_secs(3600);
        assert_eq!(race_on(vec![refused, refused, good], hour).unwrap(), good);
        // Refused by the kernel before it begins: TCP has no broadcast.
        let impossible = SocketAddr::from(([255, 255, 255, 255], 9));
        assert_eq!(race_on(vec![impossible, impossible, good], hour).unwrap(), good);
        assert!(race_on(vec![refused, impossible], hour).unwrap_err().to_string().contains("255.255.255.255:9"));
        let error = race_on(vec![refused, refused], hour).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        assert!(error.to_string().contains("127.3.2.1:1"), "{error}");
    }
}
