//! Edges, short reads, FIN and urgent data: whatever one edge carries, every byte is delivered and
//! the end is seen. The loops count the windows they really entered: a round in which the kernel
//! had not everything before the reactor looked proves nothing.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::mpsc::channel;
use std::task::Poll;
use std::time::{Duration, Instant};

use epoxide::{Connection, ReactorConfig};
use epoxide_tests_e2e::{
    Case, Ending, Parker, Peer, Rng, Server, SockDiag, TcpState, block_within, echo, hold_reactor, loopback, pattern,
    poll_once, read_to_end, rounds, stage, wait_until,
};

/// How long a connection may take to do what it must. A hang is one that does not.
const HANG: Duration = Duration::from_secs(3);

/// Answers "ok:" and the line for every line, and lets go at the peer's FIN.
async fn line_server(mut connection: Connection) -> io::Result<()> {
    let mut line = Vec::new();
    while let Some(received) = connection.read().await? {
        for byte in received.iter() {
            line.push(*byte);
            if *byte == b'\n' {
                stage(&mut connection, b"ok:")?;
                stage(&mut connection, &line)?;
                line.clear();
            }
        }
        drop(received);
        connection.flush().await?;
    }
    Ok(())
}

fn line_serving(case: &Case) -> Server {
    Server::start(case, |b| {
        b.listen(loopback(), line_server);
    })
}

/// A client whose server-side reader has been answered once, so it is registered and parks again.
fn parked_client(addr: SocketAddr) -> Peer {
    let mut peer = Peer::connect(addr);
    peer.send(b"hello\n").unwrap();
    assert_eq!(peer.read_exactly(9, HANG), Ok(b"ok:hello\n".to_vec()));
    peer
}

/// Windows that were entered, against rounds that were made.
#[derive(Default)]
struct Windows {
    entered: usize,
    rounds: usize,
}

impl Windows {
    fn count(&mut self, entered: bool) {
        self.rounds += 1;
        self.entered += usize::from(entered);
    }

    fn check(&self) {
        println!("windows entered: {} of {} rounds", self.entered, self.rounds);
        assert!(self.rounds > 0 && self.entered * 10 >= self.rounds * 9, "vacuity: too few windows");
    }
}

/// Whether the server's kernel has `unread` (a FIN counts one) for the connection of `peer`.
fn has_arrived(diag: &SockDiag, peer: &Peer, unread: u32, state: TcpState) -> bool {
    let (ours, theirs) = (peer.local_addr(), peer.peer_addr());
    wait_until(Duration::from_secs(2), || {
        diag.row(theirs, ours).is_some_and(|row| row.unread == unread && row.state == state)
    })
}

fn expect_answer_and_end(peer: &mut Peer, answer: &[u8], round: usize) {
    let (received, ending) = peer.read_to_end(HANG);
    let text = String::from_utf8_lossy(&received).into_owned();
    assert_eq!((text.as_bytes(), ending), (answer, Ending::Eof), "round {round}: got {text:?}");
}

/// 3a-6, and the family of Z.3: the reactor stands still while data and FIN arrive, so ONE edge
/// carries both.
#[test]
fn data_and_fin_in_one_edge_are_answered_and_ended() {
    let case = Case::start_rounds();
    let server = line_serving(&case);
    let diag = SockDiag::open();
    let mut windows = Windows::default();
    for round in 0..rounds() {
        let mut peer = parked_client(server.addr());
        let held = hold_reactor(&server.reactor());
        peer.send_with_fin(b"last\n").unwrap();
        windows.count(has_arrived(&diag, &peer, 6, TcpState::CloseWait));
        held.release();
        expect_answer_and_end(&mut peer, b"ok:last\n", round);
    }
    windows.check();
}

/// The same on a connection that is not even accepted yet, and on a reactor that is idle.
#[test]
fn data_and_fin_in_one_segment_are_answered_and_ended() {
    let case = Case::start_rounds();
    let server = line_serving(&case);
    for round in 0..rounds() {
        let fresh = round % 2 == 0;
        let mut peer = if fresh { Peer::connect(server.addr()) } else { parked_client(server.addr()) };
        peer.send_with_fin(b"last\n").unwrap();
        expect_answer_and_end(&mut peer, b"ok:last\n", round);
    }
}

/// 3a-6: more than one receive buffer in front of the FIN.
#[test]
fn everything_queued_before_the_fin_is_delivered() {
    let case = Case::start_rounds();
    let server = Server::start(&case, |b| {
        b.config(ReactorConfig { recv_buffer_size: 512, ..ReactorConfig::default() });
        b.listen(loopback(), |mut connection: Connection| async move {
            let all = read_to_end(&mut connection).await?;
            stage(&mut connection, &all)?;
            connection.shutdown().await
        });
    });
    let diag = SockDiag::open();
    let mut windows = Windows::default();
    for round in 0..rounds().min(2000) {
        // 16 buffers' worth is where a reader that counts its turns gives way; go past it.
        let body = pattern(512 * 16 + round % 1024);
        let mut peer = Peer::connect(server.addr());
        let held = hold_reactor(&server.reactor());
        peer.send(&body).unwrap();
        peer.half_close().unwrap();
        let unread = u32::try_from(body.len()).unwrap() + 1;
        windows.count(has_arrived(&diag, &peer, unread, TcpState::CloseWait));
        held.release();
        let (received, ending) = peer.read_to_end(HANG);
        assert_eq!((received.len(), ending), (body.len(), Ending::Eof), "round {round}");
        assert!(received == body, "round {round}: bytes differ");
    }
    windows.check();
}

/// 3a-10: data, an urgent byte and data in ONE edge. A recv stops at the urgent mark and no second
/// edge comes, so a reader that takes a short recv for "drained" never sees the rest.
#[test]
fn data_behind_an_urgent_byte_in_the_same_edge_is_delivered() {
    let case = Case::start_rounds();
    let server = line_serving(&case);
    let diag = SockDiag::open();
    let mut windows = Windows::default();
    for round in 0..rounds() {
        let mut peer = parked_client(server.addr());
        let held = hold_reactor(&server.reactor());
        peer.send(b"abc").unwrap();
        peer.send_urgent(b'!').unwrap();
        peer.send(b"def\n").unwrap();
        windows.count(has_arrived(&diag, &peer, 8, TcpState::Established));
        held.release();
        // The urgent byte is out of band and no part of the data.
        let answer = peer.read_exactly(10, HANG);
        assert_eq!(answer, Ok(b"ok:abcdef\n".to_vec()), "round {round} hangs");
        // It goes on as a connection: the next line, and the end.
        peer.send_with_fin(b"more\n").unwrap();
        expect_answer_and_end(&mut peer, b"ok:more\n", round);
    }
    windows.check();
}

/// The same with the FIN on top, and with the urgent byte first or last.
#[test]
fn urgent_bytes_and_a_fin_in_the_same_edge_lose_nothing() {
    let case = Case::start_rounds();
    let server = line_serving(&case);
    let diag = SockDiag::open();
    let mut windows = Windows::default();
    for round in 0..rounds() {
        let urgent_at = round % 3;
        let mut peer = parked_client(server.addr());
        let held = hold_reactor(&server.reactor());
        for (i, piece) in [&b"abc"[..], b"def\n", b""].into_iter().enumerate() {
            if i == urgent_at {
                peer.send_urgent(b'!').unwrap();
            }
            peer.send(piece).unwrap();
        }
        peer.half_close().unwrap();
        windows.count(has_arrived(&diag, &peer, 9, TcpState::CloseWait));
        held.release();
        expect_answer_and_end(&mut peer, b"ok:abcdef\n", round);
    }
    windows.check();
}

/// 3a-10, the other half: an urgent byte alone is no data and no reason to spin.
#[test]
fn an_urgent_byte_alone_neither_ends_nor_spins() {
    let case = Case::start();
    let server = line_serving(&case);
    let mut peer = parked_client(server.addr());
    let mut cpu = server.reactor_cpu();
    peer.send_urgent(b'!').unwrap();
    let share = cpu.share_over(Duration::from_millis(500)).unwrap();
    assert!(share < 0.30, "an unread urgent byte costs {share:.2} of a core");
    peer.send_with_fin(b"still here\n").unwrap();
    expect_answer_and_end(&mut peer, b"ok:still here\n", 0);
}

/// 3a-7: a peer's FIN closes the read side only. A flush that waits for such a peer neither spins
/// nor gives up; CPU is measured while it is parked.
#[test]
fn a_half_closed_peer_still_gets_a_blocked_response_without_a_spin() {
    let case = Case::start();
    let body = pattern(16 << 20);
    let expected = body.clone();
    let server = Server::start(&case, |b| {
        b.listen(loopback(), move |mut connection: Connection| {
            let body = body.clone();
            async move {
                read_to_end(&mut connection).await?;
                stage(&mut connection, &body)?;
                connection.shutdown().await
            }
        });
    });
    let mut peer = Peer::connect_stalling(server.addr());
    peer.send_with_fin(b"all of it, please").unwrap();
    let diag = SockDiag::open();
    let (ours, theirs) = (peer.local_addr(), peer.peer_addr());
    let sending = || diag.row(theirs, ours).is_some_and(|row| row.unacked > 0);
    assert!(wait_until(Duration::from_secs(5), sending), "vacuity: nothing was ever sent");
    let mut cpu = server.reactor_cpu();
    let share = cpu.share_over(Duration::from_millis(700)).unwrap();
    assert!(share < 0.30, "a flush parked at a half-closed peer costs {share:.2} of a core");
    let (received, ending) = peer.read_to_end(Duration::from_secs(60));
    assert_eq!((received.len(), ending), (expected.len(), Ending::Eof));
    assert!(received == expected, "bytes differ");
}

/// 3a-1: a byte lands between the recv that found nothing and the parking. The skews walk the
/// client's byte over that window; a lost one is a hang. The counters prove that readers parked.
#[test]
fn a_byte_that_lands_while_the_reader_parks_is_never_lost() {
    let case = Case::start_rounds();
    let server = Server::start(&case, |b| {
        b.listen(loopback(), echo);
    });
    let parks_before = server.stats().parks;
    let mut peer = Peer::connect(server.addr());
    let mut rng = Rng::new(1);
    let turns = rounds() * 20;
    for turn in 0..turns {
        rng.skew(2000);
        let byte = [(turn % 251) as u8];
        peer.send(&byte).unwrap();
        assert_eq!(peer.read_exactly(1, HANG), Ok(byte.to_vec()), "turn {turn} of {turns} hangs");
    }
    let parked = server.stats().parks - parks_before;
    assert!(parked > 0, "vacuity: the reader never parked");
}

/// 3a-1 with the reader on a thread of its own: the edge and the parking really run side by side.
/// The reader's delay follows its last outcome (parked, or found the byte), so that the two stay
/// neck and neck; both outcomes must have happened.
#[test]
fn a_byte_that_lands_while_a_foreign_reader_parks_is_never_lost() {
    let case = Case::start_rounds();
    let (connections, accepted) = channel();
    let server = Server::start(&case, |b| {
        b.listen(loopback(), move |connection: Connection| {
            let connections = connections.clone();
            async move {
                let _ = connections.send(connection);
            }
        });
    });
    let mut peer = Peer::connect(server.addr());
    let mut connection = accepted.recv_timeout(HANG).expect("handed over");
    let turns = rounds() * 20;
    let reader = std::thread::spawn(move || {
        let (mut parked, mut found, mut delay) = (0, 0, 0_u32);
        let mut rng = Rng::new(2);
        loop {
            for _ in 0..delay {
                std::hint::spin_loop();
            }
            rng.skew(50);
            let parker = Parker::new();
            let mut read = pin!(connection.read());
            let outcome = match poll_once(read.as_mut(), &parker) {
                Poll::Ready(outcome) => {
                    found += 1;
                    delay = delay.saturating_sub(1 + delay / 8);
                    outcome
                }
                Poll::Pending => {
                    parked += 1;
                    delay = (delay + 1 + delay / 4).min(1 << 16);
                    if !parker.park_past(0, Instant::now() + HANG) {
                        return Err(format!("the reader hangs, {parked} parked, {found} found"));
                    }
                    let second = block_within(read, HANG);
                    second.ok_or_else(|| String::from("a woken read hangs"))?
                }
            };
            let Some(received) = outcome.map_err(|e| e.to_string())? else { return Ok((parked, found)) };
            stage(&mut connection, &received).map_err(|e| e.to_string())?;
            drop(received);
            let flushed = block_within(connection.flush(), HANG);
            flushed.ok_or("the flush hangs")?.map_err(|e| e.to_string())?;
        }
    });
    for turn in 0..turns {
        let byte = [(turn % 251) as u8];
        peer.send(&byte).unwrap();
        // A hang is the reader's to report, with its counts.
        let Ok(answer) = peer.read_exactly(1, HANG) else { break };
        assert_eq!(answer, byte, "turn {turn}");
    }
    peer.half_close().unwrap();
    let (parked, found) = reader.join().unwrap().unwrap();
    println!("parked {parked}, found the byte {found}");
    assert_eq!(parked + found, turns + usize::from(parked + found > turns), "answers are missing");
    if std::thread::available_parallelism().is_ok_and(|n| n.get() > 1) {
        assert!(parked > 0 && found > 0, "vacuity: only one order happened ({parked}, {found})");
    }
}

/// 3a-14: a handler that writes before it has read anything, while the connection is being
/// registered, and goes on reading.
#[test]
fn a_greeting_before_the_first_read_harms_nothing() {
    let case = Case::start_rounds();
    let server = Server::start(&case, |b| {
        b.listen(loopback(), |mut connection: Connection| async move {
            stage(&mut connection, b"220 hello\n")?;
            connection.flush().await?;
            line_server(connection).await
        });
    });
    for round in 0..rounds().min(1000) {
        let mut peer = Peer::connect(server.addr());
        let talks_first = round % 2 == 0;
        if talks_first {
            peer.send(b"early\n").unwrap();
        }
        assert_eq!(peer.read_exactly(10, HANG), Ok(b"220 hello\n".to_vec()), "round {round}");
        if !talks_first {
            peer.send(b"early\n").unwrap();
        }
        assert_eq!(peer.read_exactly(9, HANG), Ok(b"ok:early\n".to_vec()), "round {round}");
    }
}

/// 3a-8: a reset wakes a parked reader although no byte ever comes, and a parked writer too.
#[test]
fn a_reset_wakes_a_parked_reader_and_a_parked_writer() {
    let case = Case::start();
    let (ended, endings) = channel();
    let server = Server::start(&case, |b| {
        b.listen(loopback(), move |mut connection: Connection| {
            let ended = ended.clone();
            async move {
                let Some(order) = connection.read().await? else { return io::Result::Ok(()) };
                let outcome = if order.first() == Some(&b'r') {
                    stage(&mut connection, b"!")?;
                    connection.flush().await?;
                    connection.read().await.map(|_| ())
                } else {
                    stage(&mut connection, &pattern(16 << 20))?;
                    connection.flush().await
                };
                let _ = ended.send(outcome.map_err(|e| e.kind()));
                Ok(())
            }
        });
    });
    let reset = Ok(Err(io::ErrorKind::ConnectionReset));
    let mut peer = Peer::connect(server.addr());
    peer.send(b"r").unwrap();
    peer.read_exactly(1, HANG).unwrap();
    peer.reset();
    assert_eq!(endings.recv_timeout(HANG), reset, "the parked reader");

    let mut peer = Peer::connect_stalling(server.addr());
    peer.send(b"w").unwrap();
    peer.read_exactly(1, HANG).unwrap();
    assert!(endings.recv_timeout(Duration::from_millis(300)).is_err(), "vacuity: it never parked");
    peer.reset();
    assert_eq!(endings.recv_timeout(HANG), reset, "the parked writer");
}
