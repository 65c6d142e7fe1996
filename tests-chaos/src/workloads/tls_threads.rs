//! Job: two streams at once over each session, its halves on two plain threads, on a worker and the reactor, or anywhere; ends
//! of every kind at random moments; and between the two ends a proxy that may cut, change or reset.
//! State owned: none. Thread class: the driver's thread; handlers and parties run anywhere.
//!
//! The oracle: whatever happens to the ciphertext, what is delivered is right, in order, and not more than was sent; a
//! clean end comes behind all that was promised and nowhere else; a FIN without a close_notify is told as truncation.

use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use epoxide::{CloseHandle, Connection, workers as pool};
use epoxide_tests_e2e::{Rng, loopback};
use epoxide_tls::{TlsConnection, TlsReadHalf, TlsWriteHalf};

use super::echo::{How, Meddle, proxy};
use super::length;
use super::tls::shake;
use crate::identity::configs;
use crate::stream::{End, Got, receive, send_part};
use crate::trial::{Note, Party, Place, REACTORS, Trial};

/// Does a writer end whole, or how else?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Whole,
    /// Drops its half in the middle: what was flushed goes out, and a close_notify.
    LetsGo,
    /// Its session is closed by a handle, at some moment.
    Closed,
    /// The same with a reset.
    Reset,
}

/// What a writer came to.
#[derive(Clone, Copy, Debug)]
struct Sent {
    /// Bytes whose flush was awaited.
    promised: usize,
    /// The end was awaited, too.
    is_whole: bool,
}

/// One direction of one session.
struct Flow {
    name: String,
    len: usize,
    ending: Ending,
    meddle: How,
    /// Whatever becomes of it: something was done to the session on purpose.
    excused: bool,
    sent: Party<Result<Sent, String>>,
    got: Party<Result<Got, String>>,
}

type Accepted = io::Result<TlsConnection>;

pub(super) fn run(trial: &mut Trial) -> Result<(), String> {
    let (server, client) = configs()?;
    let (tell, accepted) = channel::<Accepted>();
    let tell = Arc::new(Mutex::new(tell));
    let backend = Arc::new(OnceLock::<SocketAddr>::new());
    let to = backend.clone();
    let seed = trial.rng.next_u64();
    let meddles = [meddle(&mut trial.rng, 3000), meddle(&mut trial.rng, 6000)];
    trial.start(|b| {
        b.listen(loopback(), move |connection: Connection| {
            let to = to.get().copied();
            async move {
                let (Some(to), Ok(client)) = (to, connection.peer_addr()) else { return };
                let _ = proxy(connection, to, Rng::new(seed ^ u64::from(client.port())), meddles).await;
            }
        });
        b.listen(loopback(), move |connection: Connection| {
            let (tell, shaking) = (tell.clone(), server.accept(connection));
            async move {
                let on_pool = seed.is_multiple_of(2);
                let shaken = if on_pool { pool::spawn(shaking).await.ok() } else { Some(shaking.await) };
                let shaken = shaken.unwrap_or_else(|| Err(io::ErrorKind::Interrupted.into()));
                let _ = tell.lock().map(|tell| drop(tell.send(shaken)));
            }
        });
    })?;
    let addrs = trial.runtime().local_addrs();
    let _ = backend.set(addrs[1]);
    let is_left_alone = meddles.iter().all(|meddle| meddle.how == How::Not);
    let strict = !trial.plan.is_harsh();
    let count = 1 + trial.rng.below(3) as usize;
    let mut clients = Vec::new();
    for number in 0..count {
        // The name tells the other end which one it is.
        let host = format!("c{number}");
        let session = shake(trial, &client, addrs[0], 1, &host, strict && is_left_alone)?.pop();
        clients.extend(session.map(|(_, session)| (host, session)));
    }
    let mut flows = Vec::new();
    while !clients.is_empty() {
        let server = match next(&accepted, strict && is_left_alone, trial)? {
            Some(Ok(server)) => server,
            Some(Err(error)) if strict && is_left_alone => return Err(format!("LOST: a handshake failed: {error}")),
            Some(Err(_)) => continue,
            None => break,
        };
        let at = clients.iter().position(|(host, _)| server.facts().server_name() == Some(host.as_str()));
        let Some(at) = at else { continue };
        let (host, client) = clients.swap_remove(at);
        flows.extend(start(trial, &host, client, server, meddles));
    }
    drop(clients);
    for flow in flows {
        flow.judge(trial, strict)?;
    }
    // Whoever is accepted from here on, by the drain perhaps, is let go.
    drop(accepted);
    trial.finish()
}

fn next(accepted: &Receiver<Accepted>, strict: bool, trial: &Trial) -> Result<Option<Accepted>, String> {
    let patience = Duration::from_millis(if strict { 10_000 } else { 300 });
    match accepted.recv_timeout(patience) {
        Ok(shaken) => Ok(Some(shaken)),
        Err(_) if strict => Err(format!("HANG: a session was never accepted\n{}", trial.diagnosis())),
        Err(_) => Ok(None),
    }
}

/// Mostly nothing. Up to byte `head` it is the handshake that is met.
fn meddle(rng: &mut Rng, head: u64) -> Meddle {
    let how = [How::Not, How::Not, How::Not, How::Not, How::Not, How::Fin, How::Flip, How::Reset];
    let most = [head, 20_000, 400_000][rng.below(3) as usize];
    Meddle { at: rng.below(most) as usize, how: how[rng.below(8) as usize] }
}

/// Two halves of one session: where they run.
fn places(trial: &mut Trial) -> [Place; 2] {
    let home = Place::Reactor(trial.rng.below(REACTORS as u64) as usize);
    match trial.rng.below(4) {
        0 => [Place::Thread, Place::Thread],
        1 => [Place::Worker, home],
        2 => [home, Place::Worker],
        _ => [trial.anywhere(), trial.anywhere()],
    }
}

/// Starts both directions of a session.
fn start(
    trial: &mut Trial,
    host: &str,
    client: TlsConnection,
    server: TlsConnection,
    meddles: [Meddle; 2],
) -> [Flow; 2] {
    let endings = [Ending::Whole, Ending::Whole, Ending::Whole, Ending::LetsGo, Ending::Closed, Ending::Reset];
    let endings = [0; 2].map(|_| endings[trial.rng.below(6) as usize]);
    // One that stops reading: not both, or both writers might wait for ever.
    let stops = trial.rng.below(12);
    let ends_early = |ending: &Ending| matches!(ending, Ending::Closed | Ending::Reset);
    let excused =
        endings.iter().any(ends_early) || stops < 2 || meddles.iter().any(|m| matches!(m.how, How::Flip | How::Reset));
    let places = [places(trial), places(trial)];
    let closers = [client.close_handle(), server.close_handle()];
    for (closer, ending) in closers.into_iter().zip(endings) {
        end_later(trial, closer, ending);
    }
    let (client_reads, client_writes) = client.into_split();
    let (server_reads, server_writes) = server.into_split();
    let mut stops = [stops == 0, stops == 1].into_iter();
    let mut flow = |from: &str, writer, reader, at: usize, writes: Place, reads: Place| {
        let name = format!("{from} of {host}");
        let (key, len) = (trial.rng.next_u64(), length(&mut trial.rng));
        let (ending, stop) = (endings[at], stops.next() == Some(true));
        let until = if ending == Ending::LetsGo { trial.rng.below(len as u64) as usize } else { len };
        let rng = trial.fork();
        let sent = trial.party(format!("{name} sends"), writes, |note| write(writer, key, len, until, rng, note));
        let rng = trial.fork();
        let got = trial.party(format!("{name} is received"), reads, |note| read(reader, key, stop, rng, note));
        Flow { name, len, ending, meddle: meddles[at].how, excused, sent, got }
    };
    [
        flow("client", client_writes, server_reads, 0, places[0][0], places[1][1]),
        flow("server", server_writes, client_reads, 1, places[1][0], places[0][1]),
    ]
}

/// Ends a session from outside, at some moment.
fn end_later(trial: &mut Trial, closer: CloseHandle, ending: Ending) {
    if !matches!(ending, Ending::Closed | Ending::Reset) {
        return;
    }
    let wait = Duration::from_micros(trial.rng.below(6000));
    let _ = trial.party("the closer", Place::Worker, |_| async move {
        epoxide::time::sleep(wait).await;
        if ending == Ending::Reset { closer.reset() } else { closer.close() }
    });
}

async fn write(
    mut writer: TlsWriteHalf,
    key: u64,
    len: usize,
    until: usize,
    rng: Rng,
    note: Note,
) -> Result<Sent, String> {
    // A flush that was given up may be under way: this waits for it, so that all of it is promised.
    let sent = match send_part(&mut writer, key, len, until, rng, &note).await {
        Ok(()) => writer.flush().await,
        failed => failed,
    };
    sent.map_err(|error| error.to_string())?;
    let is_whole = until == len;
    if is_whole {
        note.say(format!("shutting down after {len}"));
        writer.shutdown().await.map_err(|error| error.to_string())?;
    }
    Ok(Sent { promised: until, is_whole })
}

/// Receives until the end, which the half knows for the peer's word or not; with `stop` only the first block.
async fn read(mut reader: TlsReadHalf, key: u64, stop: bool, rng: Rng, note: Note) -> Result<Got, String> {
    if stop {
        note.say("reading once");
        let _ = reader.read().await;
        return Ok(Got { n: 0, end: End::Error(None, "stopped reading".into()) });
    }
    let got = receive(&mut reader, key, rng, note).await;
    if reader.is_closed_by_peer() == (got.end == End::Fin) {
        Ok(got)
    } else {
        Err(format!("WRONG: it ended with {:?}, and says the opposite", got.end))
    }
}

impl Flow {
    fn judge(self, trial: &Trial, strict: bool) -> Result<(), String> {
        let Self { name, len, ending, meddle, excused, sent, got } = self;
        let sent = trial.join(sent)?;
        let got = trial.join(got)?.map_err(|what| format!("{name}: {what}"))?;
        let fail = |what: &str| {
            Err(format!(
                "{name}: {what}: {ending:?}, sent {len} ({sent:?}), got {} ({:?}), on the way: {meddle:?}",
                got.n, got.end
            ))
        };
        let is_truncated = |why: &str| why.contains("without a close_notify");
        match &got.end {
            End::Corrupt(_) => fail("CORRUPT"),
            _ if got.n > len => fail("MORE came than was sent"),
            // Whoever lets go or closes has promised what was flushed, and no more.
            End::Fin => match &sent {
                _ if got.n == len => Ok(()),
                Ok(Sent { is_whole: false, promised }) if got.n >= *promised => Ok(()),
                Err(_) if ending == Ending::Closed => Ok(()),
                _ => fail("CUT and looks whole"),
            },
            End::Error(..) if !strict || excused => Ok(()),
            End::Error(_, why) if meddle == How::Fin && is_truncated(why) => Ok(()),
            End::Error(..) => fail("LOST something though nothing was done to it"),
        }
    }
}
