//! B5's programs: one frame to many connections, N times, over loopback, in one process: `micro hub-WHO MEMBERS LEN N`.
//!
//! The publisher is the main thread, without any runtime. What receives is the same for all: a thread that reads and
//! checks everything, with plain epoll. `hub` is epoxide's; `funnel` is the same queue (`SharedWriter`) reached through its
//! reactor, with one wake for a broadcast; `tokio` has a channel and a task for each connection, which gathers what waits
//! into one `writev`.
//!
//! State: the sockets. Thread class: three threads: publisher, runtime, receiver.

use bytes::Bytes;
use epoxide::{Connection, Runtime, SendOutcome, SharedLimits, SharedWriter};
use epoxide_pipes::hub::{Hub, HubOptions, Member};
use std::collections::VecDeque;
use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Broadcasts that may be under way: beyond, the publisher waits for the receiver.
const WINDOW: usize = 16;

/// What publishes, once all members are there.
trait Publisher {
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

/// Received by all: the least that any member has, in whole frames. It is written by the receiver.
struct Progress {
    done: AtomicUsize,
    stop: AtomicBool,
}

/// Reads everything on every connection and compares it with what it must be.
fn receive(mut peers: Vec<TcpStream>, len: usize, total: usize, progress: &Progress) {
    let mut space = vec![0; 65_536];
    let mut at = vec![0_usize; peers.len()];
    let mut recent: VecDeque<(usize, Vec<u8>)> = VecDeque::new();
    for peer in &peers {
        peer.set_nonblocking(true).expect("a socket can be made nonblocking");
    }
    let mut done = 0;
    while done < total {
        for (peer, at) in peers.iter_mut().zip(&mut at) {
            let n = match peer.read(&mut space) {
                Ok(0) => panic!("a connection ended after {at} bytes"),
                Ok(n) => n,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => continue,
                Err(error) => panic!("{error}"),
            };
            let mut got = &space[..n];
            while !got.is_empty() {
                let (seq, offset) = (*at / len, *at % len);
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
        done = at.iter().min().expect("there are members") / len;
        while recent.front().is_some_and(|(seq, _)| *seq < done) {
            recent.pop_front();
        }
        progress.done.store(done, Ordering::Release);
        std::thread::yield_now();
    }
    // Nothing may come behind the last one.
    while !progress.stop.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
    assert!(peers.iter_mut().all(|peer| !matches!(peer.read(&mut space), Ok(1..))), "a frame came twice");
}

fn drive(mut publisher: impl Publisher, peers: Vec<TcpStream>, len: usize, broadcasts: usize) {
    let members = peers.len();
    let progress = Progress { done: AtomicUsize::new(0), stop: AtomicBool::new(false) };
    std::thread::scope(|scope| {
        scope.spawn(|| receive(peers, len, broadcasts, &progress));
        let began = Instant::now();
        for seq in 0..broadcasts {
            while seq - progress.done.load(Ordering::Acquire) >= WINDOW {
                // sleep: busy waiting would count as instructions of the publisher.
                std::thread::sleep(Duration::from_micros(100));
            }
            publisher.publish(&Bytes::from(frame(seq, len)));
        }
        while progress.done.load(Ordering::Acquire) < broadcasts {
            // sleep: as above.
            std::thread::sleep(Duration::from_micros(100));
        }
        println!("deliveries {}\nnanoseconds {}", members * broadcasts, began.elapsed().as_nanos());
        println!("{}", publisher.report());
        progress.stop.store(true, Ordering::Release);
    });
}

fn limits() -> SharedLimits {
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

fn epoxide_server(members: usize) -> (Runtime, Vec<SharedWriter>, Vec<TcpStream>) {
    let (writers, shared) = channel();
    let mut builder = Runtime::builder();
    builder.reactors(1);
    builder.listen("127.0.0.1:0", move |conn: Connection| {
        let writers: Sender<SharedWriter> = writers.clone();
        async move {
            let _silent = conn.suspend_read_timeout();
            conn.set_nodelay(true)?;
            let (mut reader, writer) = conn.into_shared(limits());
            let _ = writers.send(writer);
            while reader.read().await?.is_some() {}
            std::io::Result::Ok(())
        }
    });
    let runtime = builder.build().expect("the runtime starts");
    let addr = runtime.local_addrs()[0];
    let (peers, writers) = (0..members).map(|_| (connect(addr), shared.recv().expect("it is accepted"))).unzip();
    (runtime, writers, peers)
}

fn connect(addr: SocketAddr) -> TcpStream {
    TcpStream::connect(addr).expect("the server accepts")
}

/// What the counters of a reactor say about the broadcasts.
struct Meter {
    runtime: Runtime,
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

    fn report(&self) -> String {
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

/// The broadcasts that wait for the reactor, and whether it knows.
#[derive(Default)]
struct Inbox {
    frames: Vec<Bytes>,
    posted: bool,
}

struct Funnel(Arc<Mutex<Inbox>>, Arc<Vec<SharedWriter>>, Meter);

impl Publisher for Funnel {
    fn publish(&mut self, frame: &Bytes) {
        let mut inbox = self.0.lock().expect("nobody panics with it");
        inbox.frames.push(frame.clone());
        if std::mem::replace(&mut inbox.posted, true) {
            return; // one wake for all that waits
        }
        drop(inbox);
        let (inbox, writers) = (self.0.clone(), self.1.clone());
        let posted = self.2.runtime.handle().run_here(move || {
            let frames = {
                let mut inbox = inbox.lock().expect("nobody panics with it");
                inbox.posted = false;
                std::mem::take(&mut inbox.frames)
            };
            for writer in writers.iter() {
                for frame in &frames {
                    assert!(!matches!(writer.send(frame.clone()), SendOutcome::Refused(..)));
                }
            }
        });
        assert!(posted.is_ok());
    }

    fn report(&mut self) -> String {
        self.2.report()
    }
}

struct WithTokio(Vec<tokio::sync::mpsc::UnboundedSender<Bytes>>, #[allow(dead_code, reason = "as above")] tokio::runtime::Runtime);

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
            if stream.write_all(frame).await.is_err() { return }
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
                if !first.is_empty() { break }
                left.pop_front();
            }
        }
    }
}

fn tokio_server(members: usize) -> (WithTokio, Vec<TcpStream>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_io().build().expect("tokio starts");
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has ports");
    let addr = listener.local_addr().expect("it is bound");
    let (channels, peers) = (0..members)
        .map(|_| {
            let peer = connect(addr);
            let served = listener.accept().expect("it has just connected").0;
            served.set_nonblocking(true).expect("a socket can be made nonblocking");
            served.set_nodelay(true).expect("as above");
            let (channel, frames) = tokio::sync::mpsc::unbounded_channel();
            runtime.spawn(async move { forward(tokio::net::TcpStream::from_std(served).expect("it is registered"), frames).await });
            (channel, peer)
        })
        .unzip();
    (WithTokio(channels, runtime), peers)
}

/// `false`: no such program.
pub fn run(who: &str, members: usize, len: usize, broadcasts: usize) -> bool {
    match who {
        "hub-epoxide" | "hub-sequenced" => {
            let (runtime, writers, peers) = epoxide_server(members);
            let hub = Hub::new(HubOptions { sequenced: who == "hub-sequenced", bytes: 1 << 30, ..HubOptions::default() }).expect("good options");
            let joined = writers.into_iter().map(|writer| hub.join(writer).expect("it is open")).collect();
            drive(WithHub(hub, Meter::new(runtime), joined), peers, len, broadcasts);
        }
        "hub-funnel" => {
            let (runtime, writers, peers) = epoxide_server(members);
            drive(Funnel(Arc::default(), Arc::new(writers), Meter::new(runtime)), peers, len, broadcasts);
        }
        "hub-tokio" => {
            let (publisher, peers) = tokio_server(members);
            drive(publisher, peers, len, broadcasts);
        }
        _ => return false,
    }
    true
}
