//! Waiting for a task's result, and aborting it.
//!
//! State: one result cell a joined task, behind a mutex that guards no user code (wakers are cloned before and woken
//! after it). Who touches it: the task's reactor completes, the handle's holder takes. Thread class: any thread.
//! Laws: 6 (a result that was for somebody who is cut is cut as well, whichever of the two comes first), 9 (abort only
//! marks; the owner drops), 10, 12 (a handle settles when its reactor ends).

use crate::exec::header::Header;
use crate::exec::join_error::{JoinError, PanicPayload};
use crate::exec::local::{self, Discard};
use crate::exec::run;
use crate::sync::lock;
use pin_project_lite::pin_project;
use std::any::Any;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

struct Cell<T> {
    result: Option<Result<T, JoinError>>,
    waiter: Option<Waker>,
    settled: bool,
    /// The handle was dropped with something that was cut, for this reason.
    cut: Discard,
}

struct Shared<T>(Mutex<Cell<T>>);

/// Waits for a task. `Send` if its result is. Dropping it detaches the task.
///
/// When what waits for the task is cut (it is aborted, panics, or its runtime stops), so is the result: a connection in it
/// is reset, and does not end as if all had been said.
///
/// Awaiting gives the result, or a [`JoinError`]. Cancel safe: a dropped wait loses nothing but the handle.
///
/// ```
/// # epoxide::block_on(async {
/// let task = epoxide::spawn_local(async { 6 * 7 });
/// assert_eq!(task.await?, 42);
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[must_use = "dropping the handle detaches the task; use `let _ =` or `.detach()` to say so"]
pub struct JoinHandle<T> {
    shared: Arc<Shared<T>>,
    abort: AbortHandle,
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle").field("finished", &self.is_finished()).finish_non_exhaustive()
    }
}

impl<T> JoinHandle<T> {
    /// Lets the task run on without a handle.
    pub fn detach(self) {}

    /// Asks the task's reactor to drop its future; see [`AbortHandle::abort`].
    pub fn abort(&self) {
        self.abort.abort();
    }

    /// A handle that only aborts.
    pub fn abort_handle(&self) -> AbortHandle {
        self.abort.clone()
    }

    /// Is the task over and its future dropped?
    pub fn is_finished(&self) -> bool {
        lock(&self.shared.0).settled
    }
}

impl<T> Drop for JoinHandle<T> {
    #[inline]
    fn drop(&mut self) {
        if local::discard() != Discard::No || std::thread::panicking() {
            self.cut();
        }
    }
}

impl<T> JoinHandle<T> {
    /// Dropped with something that is cut: the result is taken along, now or when it comes.
    #[cold]
    #[inline(never)]
    fn cut(&self) {
        let mut cell = lock(&self.shared.0);
        cell.cut = match local::discard() {
            Discard::No => Discard::Panicked,
            why => why,
        };
        let result = cell.result.take();
        drop(cell);
        drop(result);
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    /// # Panics
    /// When polled again after it was ready.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut waiter = None;
        loop {
            let mut cell = lock(&self.shared.0);
            if cell.settled {
                let result = cell.result.take();
                drop(cell);
                return Poll::Ready(result.expect("a JoinHandle was polled again after it had given its result"));
            }
            if let Some(waiter) = waiter.take() {
                let old = cell.waiter.replace(waiter);
                drop(cell);
                drop(old);
                return Poll::Pending;
            }
            drop(cell);
            // Cloned between two looks: it is foreign code, and most handles are awaited when their task is over.
            waiter = Some(cx.waker().clone());
        }
    }
}

/// Aborts a task, from any thread, any number of times.
///
/// ```
/// # epoxide::block_on(async {
/// let task = epoxide::spawn_local(std::future::pending::<()>());
/// let abort = task.abort_handle();
/// std::thread::spawn(move || abort.abort());
/// assert!(matches!(task.await, Err(epoxide::JoinError::Aborted)));
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct AbortHandle {
    target: Target,
}

impl fmt::Debug for AbortHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AbortHandle").finish_non_exhaustive()
    }
}

#[derive(Clone)]
pub(super) enum Target {
    /// A task of a reactor.
    Task(Arc<Header>),
    /// A task or job of a pool.
    Pooled(Arc<dyn Abort>),
    /// It never was one.
    Nothing,
}

/// What a pool does to abort one of its tasks or jobs. Any thread; only marks.
pub(crate) trait Abort: Send + Sync {
    fn abort(&self);
}

impl AbortHandle {
    /// Marks the task: its own reactor, or a worker of its pool, drops the future, soon, on its own thread. Connections
    /// that the future holds are reset (a cut response must not look whole). A task that is done already is left
    /// alone, and so is a blocking job that has begun: nothing can interrupt it.
    pub fn abort(&self) {
        match &self.target {
            Target::Task(header) => header.abort(),
            Target::Pooled(pooled) => pooled.abort(),
            Target::Nothing => {}
        }
    }
}

/// The executor's side of a join: settles it when dropped, which is after the future is dropped.
pub(super) struct Completer<T> {
    shared: Arc<Shared<T>>,
    /// Kept here until then: one lock a task and not two, 30 instructions of a spawn.
    result: Option<Result<T, JoinError>>,
}

impl<T> Completer<T> {
    /// What the handle will give, once this is dropped.
    #[inline]
    pub(super) fn store(&mut self, result: Result<T, JoinError>) {
        self.result = Some(result);
    }
}

impl<T> Completer<T> {
    /// It was for somebody who is cut.
    #[cold]
    #[inline(never)]
    fn drop_result(&self, why: Discard) {
        let result = lock(&self.shared.0).result.take();
        discarding(why, || drop(result));
    }
}

impl<T> Drop for Completer<T> {
    fn drop(&mut self) {
        self.result.get_or_insert_with(|| Err(why_discarded()));
        let mut cell = lock(&self.shared.0);
        std::mem::swap(&mut cell.result, &mut self.result);
        cell.settled = true;
        let (waiter, cut) = (cell.waiter.take(), cell.cut);
        drop(cell);
        if cut != Discard::No {
            self.drop_result(cut);
        }
        if let Some(waiter) = waiter {
            // Foreign code, inside the drop of a task: it is not told that task's end, nor may a second panic meet a first.
            discarding(Discard::No, || waiter.wake());
        }
    }
}

#[cold]
fn why_discarded() -> JoinError {
    match local::discard() {
        Discard::Aborted => JoinError::Aborted,
        Discard::Panicked => match local::take_thrown() {
            Some(payload) => JoinError::Panic(PanicPayload::new(payload)),
            None => JoinError::Aborted,
        },
        Discard::No | Discard::Stopped => JoinError::Stopped,
    }
}

pin_project! {
    /// A future that stores its output for a handle. Field order matters: the future is dropped before the join
    /// settles, so whoever awaited it sees everything the future held released.
    pub(crate) struct Joined<F: Future> {
        #[pin]
        future: F,
        completer: Completer<F::Output>,
    }
}

impl<F: Future> Future for Joined<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        this.future.poll(cx).map(|output| this.completer.store(Ok(output)))
    }
}

/// Splits a future into a handle and the task to be spawned.
pub(crate) fn joined<F: Future>(header: Arc<Header>, future: F) -> (JoinHandle<F::Output>, Joined<F>) {
    let (handle, completer) = pair(header);
    (handle, Joined { future, completer })
}

/// The same for a future that is still to be made, on the reactor: `make` runs as the task's first step, so that its
/// panic reaches the handle too.
pub(crate) fn joined_with<M, F>(
    header: Arc<Header>,
    make: M,
) -> (JoinHandle<F::Output>, impl FnOnce() -> Joined<Made<M, F>>)
where
    M: FnOnce() -> F,
    F: Future,
{
    let (handle, completer) = pair(header);
    (handle, move || Joined { future: Made::Not { make: Some(make) }, completer })
}

pin_project! {
    /// A future that is made at its first poll.
    #[project = MadeProjection]
    pub(crate) enum Made<M, F> {
        Not { make: Option<M> },
        Yes { #[pin] future: F },
    }
}

impl<M: FnOnce() -> F, F: Future> Future for Made<M, F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        if let MadeProjection::Not { make } = self.as_mut().project() {
            // Taken out first: a `make` that panics leaves nothing to be run twice.
            let make = make.take().expect("a task that panicked is not polled again");
            let future = make();
            self.set(Self::Yes { future });
        }
        match self.project() {
            MadeProjection::Yes { future } => future.poll(cx),
            MadeProjection::Not { .. } => Poll::Pending,
        }
    }
}

fn pair<T>(header: Arc<Header>) -> (JoinHandle<T>, Completer<T>) {
    pair_for(Target::Task(header))
}

pub(super) fn pair_for<T>(target: Target) -> (JoinHandle<T>, Completer<T>) {
    let shared = Arc::new(Shared(Mutex::new(Cell { result: None, waiter: None, settled: false, cut: Discard::No })));
    (JoinHandle { shared: shared.clone(), abort: AbortHandle { target } }, Completer { shared, result: None })
}

/// As [`joined`], for a future that a pool polls.
pub(crate) fn joined_in_pool<F: Future>(abort: Arc<dyn Abort>, future: F) -> (JoinHandle<F::Output>, Joined<F>) {
    let (handle, completer) = pair_for(Target::Pooled(abort));
    (handle, Joined { future, completer })
}

/// The handle of what was refused.
pub(crate) fn settled<T>(error: JoinError) -> JoinHandle<T> {
    let (handle, mut completer) = pair_for(Target::Nothing);
    completer.store(Err(error));
    handle
}

/// Splits a closure into a handle and the call to be posted; a panic goes to the handle.
pub(crate) fn joined_call<T>(header: Arc<Header>, call: impl FnOnce() -> T) -> (JoinHandle<T>, impl FnOnce()) {
    let (handle, mut completer) = pair(header);
    let run = move || {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call))
            .map_err(|payload| JoinError::Panic(PanicPayload::new(payload)));
        completer.store(result);
        drop(completer);
    };
    (handle, run)
}

/// Drops what a pool gives up, telling what it holds why (law 6). On any thread, also while that thread discards
/// something else.
pub(crate) fn discarding(why: Discard, drop_it: impl FnOnce()) {
    discarding_thrown(why, None, drop_it);
}

/// The same for what threw `payload`.
pub(crate) fn discarding_thrown(why: Discard, payload: Option<Box<dyn Any + Send>>, drop_it: impl FnOnce()) {
    let before = local::discard();
    let thrown = local::set_discard(why, payload);
    run::caught(drop_it);
    let unclaimed = local::set_discard(before, thrown);
    run::caught(|| drop(unclaimed));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Sender, channel};

    /// Says as what it is dropped.
    struct Told(Sender<Discard>);

    impl Drop for Told {
        fn drop(&mut self) {
            let _ = self.0.send(local::discard());
        }
    }

    /// Law 6, both orders: the result goes as its handle went.
    #[test]
    fn a_result_is_dropped_as_its_handle_was() {
        for why in [Discard::No, Discard::Aborted, Discard::Stopped, Discard::Panicked] {
            for is_done_before in [false, true] {
                let (handle, mut completer) = pair_for(Target::Nothing);
                let (told, told_as) = channel();
                completer.store(Ok(Told(told)));
                let mut parties: [Box<dyn FnOnce()>; 2] =
                    [Box::new(move || discarding(why, || drop(handle))), Box::new(move || drop(completer))];
                if is_done_before {
                    parties.reverse();
                }
                parties.into_iter().for_each(|party| party());
                assert_eq!(told_as.try_recv(), Ok(why), "done before: {is_done_before}");
            }
        }
    }

    /// A handle that goes as its thread unwinds was waited on by somebody who does not come back.
    #[test]
    fn a_panic_of_who_waits_cuts_the_result() {
        let (handle, mut completer) = pair_for(Target::Nothing);
        let (told, told_as) = channel();
        completer.store(Ok(Told(told)));
        let waits = std::panic::AssertUnwindSafe(move || {
            let _handle = handle;
            panic!("on purpose");
        });
        assert!(std::panic::catch_unwind(waits).is_err());
        drop(completer);
        assert_eq!(told_as.try_recv(), Ok(Discard::Panicked));
    }
}
