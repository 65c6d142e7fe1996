//! Waiting for a task's result, and aborting it.
//!
//! State: one result cell a joined task, behind a mutex that guards no user code (wakers are cloned before and woken
//! after it). Who touches it: the task's reactor completes, the handle's holder takes. Thread class: any thread.
//! Laws: 9 (abort only marks; the owner drops), 10, 12 (a handle settles when its reactor ends).

use crate::exec::header::Header;
use crate::exec::local::{self, Discard};
use crate::exec::run;
use crate::sync::lock;
use pin_project_lite::pin_project;
use std::any::Any;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

/// Why a task has no result.
///
/// ```
/// # epoxide::block_on(async {
/// # std::panic::set_hook(Box::new(|_| {}));
/// let task = epoxide::spawn_local(async { panic!("a bug") });
/// match task.await {
///     Err(epoxide::JoinError::Panic(payload)) => assert_eq!(payload.text(), "a bug"),
///     other => unreachable!("{other:?}"),
/// }
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
pub enum JoinError {
    /// It panicked, with this payload.
    Panic(PanicPayload),
    /// It was aborted.
    Aborted,
    /// Its reactor, or the pool that it was given to, stopped before it was done.
    Stopped,
    /// The blocking pool was full, so that it was never taken: see
    /// [`SubmitError::PoolFull`](crate::workers::SubmitError::PoolFull).
    PoolFull,
}

impl fmt::Debug for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Panic(_) => write!(f, "Panic({:?})", self.to_string()),
            Self::Aborted => f.write_str("Aborted"),
            Self::Stopped => f.write_str("Stopped"),
            Self::PoolFull => f.write_str("PoolFull"),
        }
    }
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Panic(payload) => write!(f, "the task panicked: {}", payload.text()),
            Self::Aborted => f.write_str("the task was aborted"),
            Self::Stopped => f.write_str("the reactor or pool of the task stopped before it was done"),
            Self::PoolFull => f.write_str(
                "the blocking pool took no more jobs (WorkersConfig::max_blocking, max_overflow): \
                 raise a limit, or use Workers::spawn_blocking, which gives the job back",
            ),
        }
    }
}

impl Error for JoinError {}

impl From<JoinError> for io::Error {
    /// For handlers that return `io::Result`.
    fn from(error: JoinError) -> Self {
        Self::other(error)
    }
}

/// What a task threw. `Sync`, so that an error that holds it fits into `io::Error` and its like.
///
/// ```
/// # epoxide::block_on(async {
/// # std::panic::set_hook(Box::new(|_| {}));
/// let task = epoxide::spawn_local(async { std::panic::panic_any(7) });
/// let Err(epoxide::JoinError::Panic(payload)) = task.await else { panic!("it panicked") };
/// assert_eq!(payload.into_inner().downcast_ref(), Some(&7));
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
pub struct PanicPayload(Mutex<Box<dyn Any + Send + 'static>>);

impl PanicPayload {
    pub(super) fn new(payload: Box<dyn Any + Send>) -> Self {
        Self(Mutex::new(payload))
    }

    /// The payload itself, for [`resume_unwind`](std::panic::resume_unwind).
    pub fn into_inner(self) -> Box<dyn Any + Send> {
        self.0.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The panic's message, if it has one.
    pub fn text(&self) -> String {
        let payload = lock(&self.0);
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        text.unwrap_or("(a payload that is not text)").to_owned()
    }
}

impl fmt::Debug for PanicPayload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PanicPayload").field(&self.text()).finish()
    }
}

struct Cell<T> {
    result: Option<Result<T, JoinError>>,
    waiter: Option<Waker>,
    settled: bool,
}

struct Shared<T>(Mutex<Cell<T>>);

/// Waits for a task. `Send` if its result is. Dropping it detaches the task.
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

impl<T> Drop for Completer<T> {
    fn drop(&mut self) {
        self.result.get_or_insert_with(|| Err(why_discarded()));
        let mut cell = lock(&self.shared.0);
        std::mem::swap(&mut cell.result, &mut self.result);
        cell.settled = true;
        let waiter = cell.waiter.take();
        drop(cell);
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
    let shared = Arc::new(Shared(Mutex::new(Cell { result: None, waiter: None, settled: false })));
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
