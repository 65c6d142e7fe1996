//! The read clock and who waits: a read that was given up while it was parked is not timed, one that waits is, wherever
//! and however it is polled.

use std::io;
use std::pin::pin;
use std::sync::mpsc::{Receiver, channel};
use std::task::Poll;
use std::time::{Duration, Instant};

use epoxide::workers::{self, WorkersConfig};
use epoxide::{Clock, CloseReason, Connection, ReactorConfig, time};
use epoxide_tests_e2e::{Case, Ending, Parker, Peer, Server, block_within, loopback, poll_once, tcp_pair};

const SOON: Duration = Duration::from_secs(20);
const LIMIT: Duration = Duration::from_millis(400);
const TIMED_OUT: Option<CloseReason> = Some(CloseReason::Timeout(Clock::Read));

fn config() -> ReactorConfig {
    ReactorConfig { read_timeout: LIMIT, send_timeout: Duration::ZERO, ..ReactorConfig::default() }
}

/// A server whose handler says how it ended.
fn server<F>(case: &Case, handler: impl Fn(Connection) -> F + Clone + Send + 'static) -> (Server, Receiver<F::Output>)
where
    F: Future<Output: Send + 'static> + 'static,
{
    let (tell, told) = channel();
    let server = Server::start(case, |b| {
        b.config(config());
        b.listen(loopback(), move |connection| {
            let (served, tell) = (handler(connection), tell.clone());
            async move {
                let _ = tell.send(served.await);
            }
        });
    });
    (server, told)
}

fn reason<T>(result: io::Result<T>) -> Option<CloseReason> {
    result.err().and_then(|error| CloseReason::of(&error))
}

/// Given up by a timeout around it, in the poll in which it parked, or dropped by a select: the handler then works for
/// several times the limit without a look at the connection, and goes on with it.
#[test]
fn a_read_that_was_given_up_is_not_timed() {
    async fn by_a_timeout(connection: &mut Connection) {
        assert!(time::timeout(LIMIT / 8, connection.read()).await.is_err());
    }
    async fn at_once(connection: &mut Connection) {
        let mut read = pin!(connection.read());
        std::future::poll_fn(|cx| {
            assert!(read.as_mut().poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
    }
    let case = Case::start();
    for way in 0..2 {
        let (server, told) = server(&case, move |mut connection| async move {
            let Some(_) = connection.read().await? else { return Ok(None) };
            if way == 0 {
                by_a_timeout(&mut connection).await;
            } else {
                at_once(&mut connection).await;
            }
            // sleep: the work of a busy handler, three times the limit and at least four ticks.
            time::sleep(3 * LIMIT).await;
            connection.send_all(b"done").await?;
            let more = connection.read().await?.map(|data| data.to_vec());
            io::Result::Ok(more)
        });
        let mut peer = Peer::connect(server.addr());
        peer.send(b"?").unwrap();
        assert_eq!(peer.read_exactly(4, SOON).as_deref(), Ok(&b"done"[..]), "cut while it worked ({way})");
        peer.send(b"more").unwrap();
        assert_eq!(told.recv_timeout(SOON).unwrap().unwrap().as_deref(), Some(&b"more"[..]));
        assert_eq!(server.stats().timeouts, 0);
    }
}

/// The question that nobody answered is not held against the next read: it has the whole time again.
#[test]
fn a_read_after_one_that_was_given_up_has_the_whole_time() {
    let case = Case::start();
    let (server, told) = server(&case, |mut connection: Connection| async move {
        let Some(_) = connection.read().await? else { return Ok((false, None)) };
        let given_up = time::timeout(LIMIT / 8, connection.read()).await.is_err();
        // sleep: long enough to be asked.
        time::sleep(3 * LIMIT).await;
        let begun = std::time::Instant::now();
        let end = reason(connection.read().await);
        assert!(given_up);
        io::Result::Ok((begun.elapsed() >= LIMIT / 2, end))
    });
    let mut peer = Peer::connect(server.addr());
    peer.send(b"?").unwrap();
    assert_eq!(told.recv_timeout(SOON).unwrap().unwrap(), (true, TIMED_OUT));
    assert_eq!(peer.ending(SOON), Ending::Eof);
    assert_eq!(server.stats().timeouts, 1);
}

/// Whoever waits is timed out: a plain read, one under a longer timeout, one that another wake polls in between, one
/// beside something else in a join with wakers of its own, and a peek.
#[test]
fn a_read_that_waits_is_timed_however_it_is_polled() {
    let case = Case::start();
    for way in 0..4 {
        let (server, told) = server(&case, move |mut connection: Connection| async move {
            let Some(_) = connection.read().await? else { return Ok(None) };
            io::Result::Ok(match way {
                0 => reason(connection.read().await),
                1 => reason(time::timeout(SOON, connection.read()).await.expect("the clock is faster")),
                2 => reason(connection.peek(&mut [0; 8]).await),
                _ => {
                    // Polled with a waker that is not the task's: foreign, as in a join of another crate.
                    let parker = Parker::new();
                    let mut read = pin!(connection.read());
                    loop {
                        match poll_once(read.as_mut(), &parker) {
                            Poll::Ready(end) => break reason(end),
                            Poll::Pending => time::sleep(Duration::from_millis(20)).await,
                        }
                    }
                }
            })
        });
        let mut peer = Peer::connect(server.addr());
        peer.send(b"?").unwrap();
        assert_eq!(told.recv_timeout(SOON).unwrap().unwrap(), TIMED_OUT, "way {way}");
        assert_eq!(peer.ending(SOON), Ending::Eof);
        assert_eq!(server.stats().timeouts, 1);
    }
}

/// The same for a reader on a worker, and for one on a thread that is nobody's.
#[test]
fn a_read_on_another_thread_answers_for_itself() {
    let case = Case::start();
    let (tell, told) = channel();
    let server = Server::start(&case, |b| {
        b.config(config());
    });
    let (tcp, _client) = tcp_pair(SOON);
    let mut connection = Connection::from_std_on(&server.reactor(), tcp).unwrap();
    assert_eq!(reason(block_within(connection.read(), SOON).expect("it is timed out")), TIMED_OUT);
    drop(connection);
    drop(server);

    let server = Server::start(&case, |b| {
        b.config(config());
        b.workers(WorkersConfig { threads: 2, ..WorkersConfig::default() });
        b.listen(loopback(), move |mut connection: Connection| {
            let tell = tell.clone();
            let served = workers::spawn(async move { tell.send(reason(connection.read().await)) });
            async move { served.detach() }
        });
    });
    let mut peer = Peer::connect(server.addr());
    assert_eq!(told.recv_timeout(SOON), Ok(TIMED_OUT));
    assert_eq!(peer.ending(SOON), Ending::Eof);
}

/// The first poll of `block_on` comes before the first pass: its clock is that moment's all the same.
#[test]
fn a_read_of_the_first_poll_has_the_whole_time() {
    let _case = Case::start();
    let (tcp, _client) = tcp_pair(SOON);
    let given_up = epoxide::block_on(async {
        let mut connection = Connection::from_std(tcp).unwrap();
        time::timeout(3 * LIMIT, connection.read()).await.is_err()
    });
    assert!(given_up, "it was timed out, by a clock of 60 s");
}

/// A handler that computes for longer than the limit holds its loop: neither its own next read, nor that of another which
/// parked in the same pass, has waited for all that time.
#[test]
fn a_held_loop_is_no_silence_of_the_peer() {
    const LONG: Duration = Duration::from_millis(1000);
    let case = Case::start();
    let (tell, told) = channel();
    let server = Server::start(&case, |b| {
        b.config(ReactorConfig { read_timeout: LONG, ..config() });
        b.reactors(1);
        b.listen(loopback(), move |mut connection: Connection| {
            let tell = tell.clone();
            async move {
                let held = connection.read().await?.is_some_and(|data| &*data == b"hold");
                if held {
                    // sleep: the loop is held, that is the case.
                    std::thread::sleep(LONG + LONG / 5);
                }
                let begun = Instant::now();
                let end = reason(connection.read().await);
                let _ = tell.send((end, begun.elapsed()));
                io::Result::Ok(())
            }
        });
    });
    let (mut first, mut second) = (Peer::connect(server.addr()), Peer::connect(server.addr()));
    first.send(b"hold").unwrap();
    second.send(b"here").unwrap();
    for _ in 0..2 {
        let (end, waited) = told.recv_timeout(SOON).unwrap();
        assert_eq!(end, TIMED_OUT);
        assert!(waited >= LONG - Duration::from_millis(50), "it had only {waited:?}");
    }
}

/// Bytes that come with the question, and a guard that is taken after it, are what they are without it.
#[test]
fn bytes_are_delivered_in_every_race_with_the_question() {
    let case = Case::start();
    let (server, told) = server(&case, |mut connection: Connection| async move {
        let mut got = 0;
        let end = loop {
            match connection.read().await {
                Ok(Some(data)) => got += data.len(),
                Ok(None) => break None,
                Err(error) => break CloseReason::of(&error),
            }
        };
        (got, end)
    });
    // Each sends once more around the moment of the question.
    let peers: Vec<_> = (0..40_u64)
        .map(|i| {
            let mut peer = Peer::connect(server.addr());
            std::thread::spawn(move || {
                peer.send(b"1").unwrap();
                // sleep: the moment is the stimulus; the tick comes every 250 ms.
                std::thread::sleep(LIMIT + Duration::from_millis(10 * i));
                usize::from(peer.send(b"2").is_ok())
            })
        })
        .collect();
    let sent: usize = peers.into_iter().map(|peer| 1 + peer.join().unwrap()).sum();
    let (mut got, mut timed, mut ended) = (0, 0, 0);
    for _ in 0..40 {
        let (n, end) = told.recv_timeout(SOON).unwrap();
        got += n;
        timed += usize::from(end == TIMED_OUT);
        ended += usize::from(end.is_none());
    }
    assert!(timed > 0 && ended > 0, "vacuity: {timed} timed out, {ended} not");
    // A byte that came after the end is not delivered; nobody gets more than was sent.
    assert!(got <= sent && got >= 40 + ended, "{got} of {sent} bytes, {ended} ended in good order");
    assert_eq!(server.stats().timeouts, timed as u64);
}
