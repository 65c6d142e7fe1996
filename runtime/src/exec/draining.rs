//! Waiting for a drain: an owned future that long answers watch beside their work.
//!
//! State: the wakers of those who wait, in the home, behind a mutex that guards no user code. Who touches it: waiting
//! futures register and leave, the reactor takes all when it drains. Thread class: any thread. Laws: 10, 12.
//!
//! Register, then look; the reactor sets the stage, then takes the waiters: one of the two sees the other.

use crate::exec::home::{Home, Stage};
use crate::sync::lock;
use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

/// The home's part.
#[derive(Default)]
pub(crate) struct DrainWaiters(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    next: u64,
    wakers: HashMap<u64, Waker>,
}

impl DrainWaiters {
    /// Reactor: the stage says that it drains (or ends).
    pub(crate) fn wake_all(&self) {
        let wakers = std::mem::take(&mut lock(&self.0).wakers);
        for waker in wakers.into_values() {
            crate::exec::run::caught(|| waker.wake());
        }
    }
}

/// Ready once the reactor has begun to drain (or has ended). Owned and `Send`: it outlives the connection that gave it.
///
/// Cancel safety: nothing is lost when it is dropped.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # use std::io::Read;
/// use epoxide::{Connection, Runtime};
///
/// let mut server = Runtime::builder();
/// server.reactors(1).listen("127.0.0.1:0", |mut conn: Connection| async move {
///     conn.draining().await;
///     conn.send_all(b"bye").await
/// });
/// let runtime = server.build()?;
/// let mut client = std::net::TcpStream::connect(runtime.local_addrs()[0])?;
/// runtime.shutdown_blocking(std::time::Duration::from_secs(5))?;
/// let mut text = String::new();
/// client.read_to_string(&mut text)?;
/// assert_eq!(text, "bye");
/// # Ok(())
/// # }
/// ```
#[must_use = "futures do nothing unless polled"]
pub struct Draining {
    home: Arc<Home>,
    id: Option<u64>,
}

impl fmt::Debug for Draining {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Draining").field("reactor", &self.home.index).finish_non_exhaustive()
    }
}

impl Draining {
    pub(crate) fn new(home: Arc<Home>) -> Self {
        Self { home, id: None }
    }

    /// Has the reactor begun to drain? One load; any thread.
    pub fn has_begun(&self) -> bool {
        self.home.stage() >= Stage::Draining
    }
}

impl Future for Draining {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let waker = cx.waker().clone();
        let mut waiting = lock(&self.home.drain_waiters.0);
        let id = self.id.unwrap_or(waiting.next);
        waiting.next = waiting.next.max(id + 1);
        let old = waiting.wakers.insert(id, waker);
        drop(waiting);
        drop(old);
        self.id = Some(id);
        if self.has_begun() { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Draining {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            let waker = lock(&self.home.drain_waiters.0).wakers.remove(&id);
            drop(waker);
        }
    }
}
