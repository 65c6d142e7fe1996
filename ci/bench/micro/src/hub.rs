//! B5's programs: one frame to many connections, N times, over loopback: `micro hub-WHO MEMBERS LEN N`.
//!
//! The publisher is the main thread, without any runtime. What receives is the same for all, and a process of its own (this
//! program again), so that it is in nobody's figures: it checks every byte and writes a byte to a pipe for each broadcast
//! that all members have. `hub-epoxide` is epoxide's hub; `hub-tokio` has a channel and a task for each connection, which
//! gathers what waits into one `writev`; `hub-funnel` and `hub-mailbox` send through the reactor (see `hub_funnel`).
//!
//! State: the sockets. Thread class: the publisher's thread, the runtime's.

use crate::hub_funnel::{Funnel, Mailbox};
use bytes::Bytes;
use epoxide::{Connection, Runtime, SharedLimits, WriteHalf};
use epoxide_pipes::hub::{Hub, HubOptions, Member};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

/// Broadcasts that may be under way: beyond, the publisher waits for the receiver. HUB_WINDOW, 16.
fn window() -> usize {
    std::env::var("HUB_WINDOW").ok().and_then(|n| n.parse().ok()).unwrap_or(16)
}

/// Members that never read. HUB_STALLED, 0.
fn stalled() -> usize {
    std::env::var("HUB_STALLED").ok().and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// What publishes, once all members are there.
pub(crate) trait Publisher {
    fn publish(&mut self, frame: &Bytes);
    /// After the last frame was received: what there is to say.
    fn report(&mut self) -> String;
}

/// A frame that says which it is, and whose every byte depends on that.
fn frame(seq: usize, len: usize) -> Vec<u8> {
    let mut frame: Vec<u8> = (0..len).map(|j| (seq * 7 + j * 3) as u8).collect();
    frame[..4].copy_from_slice(&(seq as u32).to_be_bytes());
    frame
}

/// Reads everything on every connection that does not stall, compares it with what it must be, and says how far they are.
pub fn receive(addr: SocketAddr, members: usize, len: usize, total: usize) {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).expect("epoll");
    let stalled = stalled();
    let mut peers: Vec<_> = (0..members)
        .map(|i| {
            let peer = TcpStream::connect(addr).expect("the server accepts");
            peer.set_nonblocking(true).expect("a socket can be made nonblocking");
            if i >= stalled {
                epoll.add(&peer, EpollEvent::new(EpollFlags::EPOLLIN, i as u64)).expect("epoll takes a socket");
            }
            peer
        })
        .collect();
    let mut space = vec![0; 65_536];
    let mut at = vec![0_usize; members];
    let mut recent: VecDeque<(usize, Vec<u8>)> = VecDeque::new();
    let mut events = vec![EpollEvent::empty(); 256];
    let mut done = 0;
    let mut out = std::io::stdout().lock();
    while done < total {
        let n = epoll.wait(&mut events, EpollTimeout::from(30_000_u16)).expect("epoll waits");
        assert!(n > 0, "nothing for 30 s, {done} of {total} broadcasts are done");
        for event in &events[..n] {
            let i = event.data() as usize;
            let n = peers[i].read(&mut space).expect("a readable socket");
            assert!(n > 0, "a connection ended after {} bytes", at[i]);
            let (at, mut got) = (&mut at[i], &space[..n]);
            while !got.is_empty() {
                let (seq, offset) = (*at / len, *at % len);
                assert!(seq < total, "more came than was sent");
                if recent.back().is_none_or(|(last, _)| *last < seq) {
                    recent.push_back((seq, frame(seq, len)));
                }
                let first = recent.front().expect("it has just been made").0;
                let expected = &recent[seq - first].1[offset..];
                let n = expected.len().min(got.len());
                assert!(got[..n] == expected[..n], "frame {seq} is corrupt, or another came");
                *at += n;
                got = &got[n..];
            }
        }
        let now = at[stalled..].iter().min().expect("some read") / len;
        if now > done {
            out.write_all(&vec![1; now - done]).and_then(|()| out.flush()).expect("the publisher reads");
            done = now;
        }
        while recent.len() > 1 && recent.front().is_some_and(|(seq, _)| *seq < done) {
            recent.pop_front();
        }
    }
    // Until the publisher has its figures. Nothing may come behind the last frame.
    let _ = std::io::stdin().read(&mut [0]);
    assert!(peers[stalled..].iter_mut().all(|peer| !matches!(peer.read(&mut space), Ok(1..))), "a frame came twice");
}

/// The receiver's process.
struct Receiver {
    child: Child,
    progress: ChildStdout,
}

impl Receiver {
    fn start(addr: SocketAddr, members: usize, len: usize, broadcasts: usize) -> Self {
        let program = std::env::current_exe().expect("it has a path");
        let args = [members, len, broadcasts].map(|n| n.to_string());
        let mut child = Command::new(program)
            .arg("hub-receive")
            .arg(addr.to_string())
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let progress = child.stdout.take().expect("it is piped");
        Self { child, progress }
    }
}

fn drive(mut publisher: impl Publisher, mut receiver: Receiver, members: usize, len: usize, broadcasts: usize) {
    let window = window();
    let (mut done, mut space) = (0, vec![0; window]);
    let mut wait = |done: &mut usize| {
        let n = receiver.progress.read(&mut space).expect("the pipe works");
        assert!(n > 0, "the receiver has found something wrong");
        *done += n;
    };
    let began = Instant::now();
    for seq in 0..broadcasts {
        while seq - done >= window {
            wait(&mut done);
        }
        publisher.publish(&Bytes::from(frame(seq, len)));
    }
    while done < broadcasts {
        wait(&mut done);
    }
    println!("deliveries {}\nnanoseconds {}", members * broadcasts, began.elapsed().as_nanos());
    println!("{}", publisher.report());
    drop(receiver.child.stdin.take());
    assert!(receiver.child.wait().expect("it ends").success(), "the receiver has found something wrong");
}

pub(crate) fn limits() -> SharedLimits {
    SharedLimits { frames: 1 << 20, bytes: 1 << 30, age: Duration::ZERO, ..SharedLimits::default() }
}

/// CPU time of a thread by its name: the reactor's share.
fn cpu_ticks(name: &str) -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").expect("there is /proc");
    let stats = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("stat")).ok());
    stats
        .filter(|stat| stat.contains(&format!("({name}")))
        .map(|stat| {
            let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
            fields[11].parse::<u64>().unwrap_or(0) + fields[12].parse::<u64>().unwrap_or(0)
        })
        .sum()
}

/// A server that hands every connection's writing half out.
fn epoxide_server(len: usize, members: usize, broadcasts: usize) -> (Runtime, Vec<WriteHalf>, Receiver) {
    let (writers, halves) = channel();
    let mut builder = Runtime::builder();
    builder.reactors(1);
    builder.listen("127.0.0.1:0", move |conn: Connection| {
        let writers: Sender<WriteHalf> = writers.clone();
        async move {
            let _silent = conn.suspend_read_timeout();
            conn.set_nodelay(true)?;
            let (mut reader, writer) = conn.into_split();
            let _ = writers.send(writer);
            while reader.read().await?.is_some() {}
            std::io::Result::Ok(())
        }
    });
    let runtime = builder.build().expect("the runtime starts");
    let receiver = Receiver::start(runtime.local_addrs()[0], members, len, broadcasts);
    let writers = (0..members).map(|_| halves.recv().expect("it is accepted")).collect();
    (runtime, writers, receiver)
}

/// What the counters of a reactor say about the broadcasts.
pub(crate) struct Meter {
    pub(crate) runtime: Runtime,
    before: (u64, u64, u64),
}

impl Meter {
    fn new(runtime: Runtime) -> Self {
        let mut meter = Self { runtime, before: (0, 0, 0) };
        meter.before = meter.now();
        meter
    }

    fn now(&self) -> (u64, u64, u64) {
        let stats = self.runtime.stats();
        (stats.sends, stats.eventfd_writes, cpu_ticks("epoxide"))
    }

    pub(crate) fn report(&self) -> String {
        let (sends, writes, ticks) = self.now();
        let before = self.before;
        format!("sends {}\neventfd_writes {}\nreactor_ticks {}", sends - before.0, writes - before.1, ticks - before.2)
    }
}

struct WithHub(Hub, Meter, #[allow(dead_code, reason = "holding them is what they are for")] Vec<Member>);

impl Publisher for WithHub {
    fn publish(&mut self, frame: &Bytes) {
        let tally = self.0.broadcast(frame.clone()).expect("the hub is open");
        assert_eq!(tally.refused + tally.ended, 0);
    }

    fn report(&mut self) -> String {
        self.1.report()
    }
}

struct WithTokio(
    Vec<tokio::sync::mpsc::UnboundedSender<Bytes>>,
    #[allow(dead_code, reason = "as above")] tokio::runtime::Runtime,
);

impl Publisher for WithTokio {
    fn publish(&mut self, frame: &Bytes) {
        for channel in &self.0 {
            channel.send(frame.clone()).expect("its task lives");
        }
    }

    fn report(&mut self) -> String {
        String::new()
    }
}

/// A task for each connection, as chat servers on tokio have it.
async fn forward(mut stream: tokio::net::TcpStream, mut frames: tokio::sync::mpsc::UnboundedReceiver<Bytes>) {
    use bytes::Buf;
    use tokio::io::AsyncWriteExt;
    let mut batch = Vec::new();
    while frames.recv_many(&mut batch, 64).await > 0 {
        if let [frame] = &mut batch[..] {
            if stream.write_all(frame).await.is_err() {
                return;
            }
            batch.clear();
            continue;
        }
        let mut left: VecDeque<Bytes> = batch.drain(..).collect();
        while !left.is_empty() {
            let slices: Vec<_> = left.iter().map(|frame| std::io::IoSlice::new(frame)).collect();
            let Ok(mut n) = stream.write_vectored(&slices).await else { return };
            while let Some(first) = left.front_mut() {
                let taken = n.min(first.len());
                first.advance(taken);
                n -= taken;
                if !first.is_empty() {
                    break;
                }
                left.pop_front();
            }
        }
    }
}

fn tokio_server(len: usize, members: usize, broadcasts: usize) -> (WithTokio, Receiver) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_io().build().expect("tokio starts");
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has ports");
    let receiver = Receiver::start(listener.local_addr().expect("it is bound"), members, len, broadcasts);
    let channels = (0..members)
        .map(|_| {
            let served = listener.accept().expect("it connects").0;
            served.set_nonblocking(true).expect("a socket can be made nonblocking");
            served.set_nodelay(true).expect("as above");
            let (channel, frames) = tokio::sync::mpsc::unbounded_channel();
            runtime.spawn(async move {
                forward(tokio::net::TcpStream::from_std(served).expect("it is registered"), frames).await
            });
            channel
        })
        .collect();
    (WithTokio(channels, runtime), receiver)
}

/// `false`: no such program.
pub fn run(who: &str, members: usize, len: usize, broadcasts: usize) -> bool {
    match who {
        "hub-epoxide" | "hub-sequenced" => {
            let (runtime, writers, receiver) = epoxide_server(len, members, broadcasts);
            let options = HubOptions { sequenced: who == "hub-sequenced", bytes: 1 << 30, ..HubOptions::default() };
            let hub = Hub::new(options).expect("good options");
            let join = |writer: WriteHalf| hub.join(writer.into_shared(limits())).expect("it is open");
            let joined = writers.into_iter().map(join).collect();
            drive(WithHub(hub, Meter::new(runtime), joined), receiver, members, len, broadcasts);
        }
        "hub-funnel" => {
            let (runtime, writers, receiver) = epoxide_server(len, members, broadcasts);
            drive(Funnel::new(writers, Meter::new(runtime)), receiver, members, len, broadcasts);
        }
        "hub-mailbox" => {
            let (runtime, writers, receiver) = epoxide_server(len, members, broadcasts);
            drive(Mailbox::new(writers, Meter::new(runtime)), receiver, members, len, broadcasts);
        }
        "hub-tokio" => {
            let (publisher, receiver) = tokio_server(len, members, broadcasts);
            drive(publisher, receiver, members, len, broadcasts);
        }
        _ => return false,
    }
    true
}
