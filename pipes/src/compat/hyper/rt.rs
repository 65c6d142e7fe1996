//! hyper's timer and executors on epoxide's.
//!
//! Job: glue. State owned: none. Thread class: any thread, except [`LocalExecutor`]: reactor threads.

use epoxide::workers::Workers;
use epoxide::{ReactorHandle, spawn_local, time};
use hyper::rt::{Executor, Sleep, Timer};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// hyper's timer on [`epoxide::time`]: works on every thread, and moving a deadline allocates nothing.
///
/// ```
/// # epoxide::block_on(async {
/// use hyper::rt::Timer;
///
/// epoxide_pipes::HttpTimer.sleep(std::time::Duration::from_millis(1)).await;
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct HttpTimer;

/// A sleep that hyper may hold.
struct Asleep(time::Sleep);

impl Future for Asleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.0).poll(cx)
    }
}

impl Sleep for Asleep {}

impl Timer for HttpTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        Box::pin(Asleep(time::sleep(duration)))
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        Box::pin(Asleep(time::sleep_until(deadline)))
    }

    fn reset(&self, sleep: &mut Pin<Box<dyn Sleep>>, new_deadline: Instant) {
        match sleep.as_mut().downcast_mut_pin::<Asleep>() {
            Some(mut asleep) => asleep.0.reset(new_deadline),
            // Another timer's.
            None => *sleep = self.sleep_until(new_deadline),
        }
    }
}

/// Runs hyper's futures on the calling reactor, by [`spawn_local`]: they need not be `Send`.
///
/// # Panics
/// `execute` does, on a thread that runs no reactor.
///
/// ```
/// # epoxide::block_on(async {
/// use hyper::rt::Executor;
///
/// let (tell, told) = std::sync::mpsc::channel();
/// epoxide_pipes::LocalExecutor.execute(async move { tell.send(42).unwrap() });
/// epoxide::yield_now().await;
/// assert_eq!(told.recv(), Ok(42));
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct LocalExecutor;

impl<F> Executor<F> for LocalExecutor
where
    F: Future + 'static,
    F::Output: 'static,
{
    fn execute(&self, future: F) {
        spawn_local(future).detach();
    }
}

/// Runs hyper's `Send` futures: on the calling reactor or the workers of the calling thread's runtime, on one reactor,
/// or on the workers of one runtime.
///
/// A future that is handed over after the runtime has stopped is dropped, which ends what it serves.
///
/// ```
/// # epoxide::block_on(async {
/// use epoxide_pipes::SendExecutor;
/// use hyper::rt::Executor;
///
/// let (tell, told) = std::sync::mpsc::channel();
/// SendExecutor::on_workers(epoxide::workers::Workers::current().unwrap())
///     .execute(async move { tell.send(std::thread::current().id()).unwrap() });
/// assert_ne!(told.recv(), Ok(std::thread::current().id()));
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug, Default)]
pub struct SendExecutor(Where);

#[derive(Clone, Debug, Default)]
enum Where {
    #[default]
    Here,
    Reactor(ReactorHandle),
    Workers(Workers),
}

impl SendExecutor {
    /// On the calling thread's reactor, and on a worker or a thread that has entered a runtime on its workers.
    pub fn here() -> Self {
        Self(Where::Here)
    }

    /// On a reactor.
    pub fn on_reactor(reactor: ReactorHandle) -> Self {
        Self(Where::Reactor(reactor))
    }

    /// On the async workers of a runtime.
    pub fn on_workers(workers: Workers) -> Self {
        Self(Where::Workers(workers))
    }
}

impl<F> Executor<F> for SendExecutor
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, future: F) {
        // A refusal drops the future: hyper sees its stream or connection end.
        match &self.0 {
            Where::Here if on_a_reactor() => spawn_local(future).detach(),
            Where::Here => {
                if let Some(workers) = Workers::current() {
                    let _ = workers.spawn(future).map(epoxide::JoinHandle::detach);
                }
            }
            Where::Reactor(reactor) => {
                let _ = reactor.spawn(future).map(epoxide::JoinHandle::detach);
            }
            Where::Workers(workers) => {
                let _ = workers.spawn(future).map(epoxide::JoinHandle::detach);
            }
        }
    }
}

/// Does the calling thread run a reactor?
pub(super) fn on_a_reactor() -> bool {
    ReactorHandle::current().is_some_and(|reactor| reactor.is_current_thread())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_moves_the_same_sleep() {
        let mut sleep = HttpTimer.sleep(Duration::from_secs(3600));
        let before = &raw const *sleep.as_ref();
        HttpTimer.reset(&mut sleep, Instant::now());
        assert!(std::ptr::addr_eq(before, &raw const *sleep.as_ref()), "a reset made a new box");
        let polled = sleep.as_mut().poll(&mut Context::from_waker(std::task::Waker::noop()));
        assert!(polled.is_ready(), "the deadline was moved to now");
    }

    /// hyper may hand in a sleep that another timer made: it is replaced.
    #[test]
    fn a_reset_of_a_foreign_sleep_makes_one_of_ours() {
        struct Foreign;
        impl Future for Foreign {
            type Output = ();
            fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
                Poll::Pending
            }
        }
        impl Sleep for Foreign {}
        let mut sleep: Pin<Box<dyn Sleep>> = Box::pin(Foreign);
        HttpTimer.reset(&mut sleep, Instant::now());
        let polled = sleep.as_mut().poll(&mut Context::from_waker(std::task::Waker::noop()));
        assert!(polled.is_ready(), "it is still the other timer's");
    }
}
