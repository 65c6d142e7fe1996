//! The start: bind, spawn a thread per reactor, wait until each has started, or undo everything.
//!
//! State: none. Thread class: any thread. Laws: 4 (all bound and listening before any accepts), 10 (hooks), 12.

use crate::error::complain;
use crate::exec::company::Company;
use crate::exec::enter::EnterHooks;
use crate::exec::handle::ReactorHandle;
use crate::exec::home::Home;
use crate::exec::run;
use crate::reactor::accept::Listener;
use crate::reactor::stall::StallHook;
use crate::reactor::{Ended, Reactor};
use crate::runtime::builder::Builder;
use crate::runtime::control::Control;
use crate::runtime::listen::Bound;
use crate::runtime::running::Runtime;
use crate::sync::limit::Limit;
use crate::workers::pools::Pools;
use crate::{sys, trace};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

/// Descriptors that the default of `max_connections` leaves for everything else.
const LEFT_FOR_OTHERS: usize = 64;

type StartHook = Arc<dyn Fn(&ReactorHandle) -> Result<(), String> + Send + Sync>;
type StopHook = Arc<dyn Fn(&ReactorHandle) + Send + Sync>;
type FaultHook = Arc<dyn Fn(&ReactorHandle, &io::Error) + Send + Sync>;

/// User code around a reactor's life.
#[derive(Clone, Default)]
pub(crate) struct Hooks {
    pub(crate) start: Vec<StartHook>,
    pub(crate) stop: Vec<StopHook>,
    pub(crate) fault: Vec<FaultHook>,
    pub(crate) enter: EnterHooks,
    pub(crate) stall: Vec<StallHook>,
}

/// Everything a reactor thread needs.
struct Plan {
    home: Arc<Home>,
    listeners: Vec<Bound>,
    limit: Arc<Limit>,
    hooks: Hooks,
    core: Option<usize>,
    control: Arc<Control>,
}

/// Starts what the builder says.
pub(crate) fn launch(builder: Builder) -> io::Result<Runtime> {
    let reactors = count(&builder)?;
    let listeners = builder.listeners.len();
    start_all(builder, reactors).map_err(|error| name_the_limit(error, reactors, listeners))
}

fn start_all(builder: Builder, reactors: usize) -> io::Result<Runtime> {
    builder.config.validate()?;
    builder.workers.validate()?;
    raise_descriptor_limit();
    let limit = connection_limit(builder.max_connections)?;
    let mut per_reactor: Vec<Vec<Bound>> = (0..reactors).map(|_| Vec::new()).collect();
    let mut addrs = Vec::new();
    for spec in builder.listeners {
        let (addr, bound) = spec.bind(reactors)?;
        addrs.push(addr);
        for (mine, one) in per_reactor.iter_mut().zip(bound) {
            mine.push(one);
        }
    }
    let homes = (0..reactors)
        .map(|index| Home::new(index, builder.config.clone()).map(Arc::new))
        .collect::<io::Result<Vec<_>>>()?;
    let pools = Pools::new(&builder.workers, builder.hooks.enter.clone());
    pools.attach(&homes);
    Company::of(&homes);
    let control = Arc::new(Control::new(reactors, pools));
    let mut runtime = Runtime::new(homes.clone(), addrs, control.clone());
    let (started, starts) = channel();
    for (home, listeners) in homes.into_iter().zip(per_reactor) {
        let core = builder.pin.as_ref().map(|cores| cores[home.index % cores.len()]);
        let plan = Plan {
            home,
            listeners,
            limit: limit.clone(),
            hooks: builder.hooks.clone(),
            core,
            control: control.clone(),
        };
        runtime.adopt(spawn(plan, started.clone())?);
    }
    drop(started);
    // On an error the runtime is dropped here, which stops and joins those that did start.
    await_starts(&starts, reactors)?;
    Ok(runtime)
}

/// Many connections need many descriptors; the hard limit stays the administrator's.
pub(super) fn raise_descriptor_limit() {
    // Refused: as many as there may be.
    let _ = sys::limits::raise_descriptor_limit();
}

/// Out of descriptors while starting: says how many are needed and which limit stands in the way.
pub(super) fn name_the_limit(error: io::Error, reactors: usize, listeners: usize) -> io::Error {
    let which = match sys::error::errno_of(&error) {
        Some(sys::errno::EMFILE) => "RLIMIT_NOFILE",
        Some(sys::errno::ENFILE) => "fs.file-max",
        _ => return error,
    };
    let soft = sys::limits::descriptor_limit().map_or(0, |(soft, _)| soft);
    // An epoll and an eventfd a reactor, and its own socket for each listener.
    let needed = reactors * (2 + listeners);
    let what = format!(
        "{reactors} reactors with {listeners} listeners: they need {needed} descriptors before the first connection and \
         {which} stands in the way (RLIMIT_NOFILE is {soft}); raise it or start fewer reactors"
    );
    sys::error::SysError::wrap("start", what, error)
}

/// The runtime's limit: what was asked for, or what the descriptors allow with some left for everything else.
pub(super) fn connection_limit(asked: Option<usize>) -> io::Result<Arc<Limit>> {
    if asked == Some(0) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "max_connections(0): nothing could be accepted"));
    }
    let (soft, _) = sys::limits::descriptor_limit()?;
    let possible = usize::try_from(soft).unwrap_or(usize::MAX).saturating_sub(LEFT_FOR_OTHERS).max(1);
    Ok(Limit::new(asked.unwrap_or(possible)))
}

fn count(builder: &Builder) -> io::Result<usize> {
    let invalid = |text: String| io::Error::new(io::ErrorKind::InvalidInput, text);
    if builder.pin.as_ref().is_some_and(Vec::is_empty) {
        return Err(invalid("pin() was given no CPU; leave it out to let the scheduler decide".into()));
    }
    match builder.reactors {
        Some(0) => Err(invalid("reactors(0): a runtime needs at least one reactor".into())),
        Some(n) if n > 65_536 => Err(invalid(format!("reactors({n}): at most 65536"))),
        Some(n) => Ok(n),
        None => Ok(sys::affinity::allowed_cpus()?.len().max(1)),
    }
}

fn spawn(plan: Plan, started: Sender<io::Result<()>>) -> io::Result<thread::JoinHandle<()>> {
    let index = plan.home.index;
    let name = format!("epoxide-{index}");
    let control = plan.control.clone();
    let spawned = thread::Builder::new().name(name).spawn(move || reactor_thread(plan, started));
    spawned.map_err(|error| {
        control.reactor_ended(Ended::default(), None);
        // EAGAIN of pthread_create(3) says little by itself.
        sys::error::SysError::wrap("start", format!("the thread of reactor {index} (RLIMIT_NPROC?)"), error)
    })
}

fn await_starts(starts: &Receiver<io::Result<()>>, reactors: usize) -> io::Result<()> {
    for _ in 0..reactors {
        // A thread that dies without a word drops its sender.
        starts.recv().unwrap_or_else(|_| Err(io::Error::other("a reactor thread died while it started")))?;
    }
    Ok(())
}

/// A reactor's life.
fn reactor_thread(plan: Plan, started: Sender<io::Result<()>>) {
    let Plan { home, listeners, limit, hooks, core, control } = plan;
    let handle = ReactorHandle { home: home.clone() };
    // Told by its drop, whatever happens on this thread: nobody is to wait for one that is gone.
    let mut end = Report { control, ended: Ended::default(), fault: None };
    hooks.enter.around(|entered| {
        if !home.config.moderation.is_zero() {
            sys::clock::punctual();
            sys::schedule::give_way();
        }
        let ready = pin(core).and_then(|()| if entered { Ok(()) } else { Err(not_entered()) });
        match ready.inspect_err(|_| home.abandon()).and_then(|()| start(home, listeners, limit, &hooks)) {
            Err(error) => {
                let _ = started.send(Err(error));
            }
            Ok(reactor) => {
                let _ = started.send(Ok(()));
                // Dropped before the loop: who waits for the starts is told of a thread that dies by a channel without
                // senders.
                drop(started);
                (end.ended, end.fault) = run_to_end(reactor, &hooks, &handle);
            }
        }
    });
}

/// An `enter` hook did not do what it is for.
pub(super) fn not_entered() -> io::Error {
    io::Error::other("an enter hook panicked or returned without calling the thread that it was given")
}

/// A reactor thread's last word.
struct Report {
    control: Arc<Control>,
    ended: Ended,
    fault: Option<io::Error>,
}

impl Drop for Report {
    fn drop(&mut self) {
        self.control.reactor_ended(self.ended, self.fault.take());
    }
}

/// The loop, the teardown and the hooks of a reactor that has started.
pub(super) fn run_to_end(mut reactor: Reactor, hooks: &Hooks, handle: &ReactorHandle) -> (Ended, Option<io::Error>) {
    // User code is caught where it runs: a panic here is a defect of the loop. It ends the reactor as a fault, so that
    // nobody waits for a thread that is gone.
    let fault = match catch_unwind(AssertUnwindSafe(|| reactor.run_to_end())) {
        Ok(result) => result.err(),
        Err(_) => Some(io::Error::other("the reactor's loop panicked: this is a defect of epoxide")),
    };
    let ended = catch_unwind(AssertUnwindSafe(|| reactor.teardown())).unwrap_or_default();
    if let Some(error) = &fault {
        complain(format_args!("reactor {} ended by a fault: {error}", handle.id()));
        trace::fault(handle.id(), error);
        for hook in &hooks.fault {
            run::caught(|| hook(handle, error));
        }
    }
    for hook in &hooks.stop {
        run::caught(|| hook(handle));
    }
    (ended, fault)
}

fn pin(core: Option<usize>) -> io::Result<()> {
    let Some(core) = core else { return Ok(()) };
    sys::affinity::pin_current(&[core])
        .map_err(|error| io::Error::new(error.kind(), format!("cannot pin to CPU {core}: {error}")))
}

/// Set-up on the reactor's own thread. On an error nobody runs this reactor any more: what was handed to it settles.
pub(super) fn start(home: Arc<Home>, listeners: Vec<Bound>, limit: Arc<Limit>, hooks: &Hooks) -> io::Result<Reactor> {
    let handle = ReactorHandle { home: home.clone() };
    let mut reactor = Reactor::new(home.clone(), limit).inspect_err(|_| home.abandon())?;
    reactor.set_stall_hooks(hooks.stall.clone());
    let result = run_start_hooks(hooks, &handle).and_then(|()| add_listeners(&mut reactor, listeners, &handle));
    match result {
        Ok(()) => Ok(reactor),
        Err(error) => {
            reactor.teardown();
            Err(error)
        }
    }
}

fn run_start_hooks(hooks: &Hooks, handle: &ReactorHandle) -> io::Result<()> {
    for hook in &hooks.start {
        let mut outcome = Err("an on_start hook panicked".to_string());
        run::caught(|| outcome = hook(handle));
        outcome.map_err(io::Error::other)?;
    }
    Ok(())
}

fn add_listeners(reactor: &mut Reactor, listeners: Vec<Bound>, handle: &ReactorHandle) -> io::Result<()> {
    for Bound { fd, path, id, shared, limit, make } in listeners {
        let mut handler = None;
        run::caught(|| handler = Some(make(handle)));
        let handler =
            handler.ok_or_else(|| io::Error::other(format!("building the handler of listener {} panicked", id.0)))?;
        reactor.add_listener(Listener::new(fd, path, id, shared, limit, handler))?;
    }
    Ok(())
}
