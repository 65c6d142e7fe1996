//! A chat room: every line that a client sends goes to all others.
//!
//! Each connection's handler runs on its own reactor and writes to every connection of every reactor, directly, on its own
//! thread; with `--announce` a plain thread does too. Lines are frames: no two are ever mixed, whoever sends. A client
//! that does not read is let go once too much waits for it, and costs the others nothing before.

use clap::Parser;
use epoxide::{Connection, ReadHalf, Refusal, SendOutcome, SharedLimits, SharedWriter};
use epoxide_samples::cli::ServerArgs;
use epoxide_samples::say::complain;
use epoxide_samples::server;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

#[derive(Parser, Debug)]
#[command(
    about = "A chat room over plain TCP: every line goes to all the others. Try it with two or more `nc`, or `curl telnet://`."
)]
struct Args {
    #[command(flatten)]
    server: ServerArgs,
    /// Seconds between two announcements of how many are here, from a thread of its own; 0 is never.
    #[arg(long, default_value_t = 0)]
    announce: u64,
    /// KiB that may wait for a client that does not read; then it is let go.
    #[arg(long, default_value_t = 256)]
    backlog: usize,
}

/// Bytes of a line; a longer one ends the connection.
const MAX_LINE: usize = 4096;

/// Who is here. A sender takes the list and sends without the lock.
#[derive(Default)]
struct Room {
    members: Mutex<Arc<Vec<Member>>>,
    names: AtomicU64,
}

#[derive(Clone)]
struct Member {
    name: u64,
    writer: SharedWriter,
}

impl Room {
    fn members(&self) -> Arc<Vec<Member>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn change(&self, change: impl FnOnce(&mut Vec<Member>)) {
        let mut members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        change(Arc::make_mut(&mut members));
    }

    /// Who is welcomed hears everything from then on.
    fn join(&self, writer: SharedWriter) -> u64 {
        let name = self.names.fetch_add(1, Ordering::Relaxed) + 1;
        self.change(|members| members.push(Member { name, writer: writer.clone() }));
        let _ = writer.send(format!("* you are guest {name} of {}\n", self.members().len()));
        drop(writer);
        self.tell(&format!("* guest {name} is here\n"), name);
        name
    }

    /// The writer goes with the list: its last clone sends what is queued, then FIN.
    fn leave(&self, name: u64) {
        self.change(|members| members.retain(|member| member.name != name));
        self.tell(&format!("* guest {name} has left\n"), name);
    }

    /// To everybody but `from`. The line is in memory once, however many get it.
    fn tell(&self, line: &str, from: u64) {
        let line = bytes::Bytes::copy_from_slice(line.as_bytes());
        for member in self.members().iter().filter(|member| member.name != from) {
            match member.writer.send(line.clone()) {
                SendOutcome::Sent | SendOutcome::Queued => {}
                // Its own handler notices and leaves.
                SendOutcome::Refused(Refusal::Closed(_), _) => {}
                SendOutcome::Refused(why, _) => {
                    complain(format_args!("[chat] guest {} is let go: {why}", member.name));
                    member.writer.close_handle().reset();
                }
            }
        }
    }
}

fn main() -> io::Result<()> {
    let args = Args::parse();
    let room = Arc::new(Room::default());
    let limits = SharedLimits { bytes: args.backlog.saturating_mul(1024), ..SharedLimits::default() };
    let mut server = args.server.builder();
    let of_handlers = room.clone();
    server.listen(args.server.target(), move |conn| serve(conn, of_handlers.clone(), limits));
    let runtime = server.build()?;
    let (over, is_over) = channel::<()>();
    let announcer = (args.announce > 0).then(|| {
        std::thread::spawn(move || {
            while is_over.recv_timeout(Duration::from_secs(args.announce)) == Err(RecvTimeoutError::Timeout) {
                room.tell(&format!("* {} are here\n", room.members().len()), 0);
            }
        })
    });
    server::run_runtime("chat", runtime, Duration::from_secs(5), |addr| {
        format!(
            "try it in two terminals: nc {} {}   or, without nc: curl telnet://{addr}   (Ctrl-C says good-bye to all)",
            addr.ip(),
            addr.port()
        )
    })?;
    drop(over);
    if announcer.is_some_and(|thread| thread.join().is_err()) {
        complain(format_args!("[chat] the announcer panicked"));
    }
    Ok(())
}

async fn serve(conn: Connection, room: Arc<Room>, limits: SharedLimits) -> io::Result<()> {
    // A guest may be silent for hours; one that takes nothing is found by the limits, one that is gone by keepalive.
    let _silent = conn.suspend_read_timeout();
    conn.set_keepalive(Some(Duration::from_secs(60)), Duration::from_secs(10), 3)?;
    let (reader, writer) = conn.into_shared(limits);
    let name = room.join(writer);
    let result = lines(reader, &room, name).await;
    room.leave(name);
    result
}

async fn lines(mut reader: ReadHalf, room: &Room, name: u64) -> io::Result<()> {
    let mut partial = Vec::new();
    while let Some(data) = reader.read_idle().await? {
        partial.extend_from_slice(&data);
        drop(data);
        let mut begin = 0;
        while let Some(length) = memchr::memchr(b'\n', &partial[begin..]) {
            if length > MAX_LINE {
                return Err(too_long());
            }
            // Whatever the bytes are, what goes out is one line of text: nothing in it moves a terminal's cursor.
            let line = String::from_utf8_lossy(&partial[begin..begin + length]);
            let line = line.trim_end().replace(|c: char| c.is_control() && c != '\t', "\u{FFFD}");
            if !line.is_empty() {
                room.tell(&format!("{name}: {line}\n"), name);
            }
            begin += length + 1;
        }
        partial.drain(..begin);
        if partial.len() > MAX_LINE {
            return Err(too_long());
        }
    }
    Ok(())
}

fn too_long() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("a line of more than {MAX_LINE} bytes"))
}
