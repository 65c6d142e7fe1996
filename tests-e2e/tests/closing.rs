//! A close while the peer goes on sending: the answer arrives whole, reads end.

use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use epoxide::{CloseHandle, Connection};
use epoxide_tests_e2e::*;

const SOON: Duration = Duration::from_secs(20);

/// `how` ends the connection behind a queued answer; the peer then sends one more byte and reads.
fn answer_behind(how: &'static str) -> (usize, Ending) {
    let case = Case::start();
    let (handles, handle) = channel::<CloseHandle>();
    let server = Server::start(&case, move |b| {
        b.listen(loopback(), move |mut c: Connection| {
            let handles = handles.clone();
            async move {
                let _ = c.read().await;
                c.stage(&pattern(1_000_000)).unwrap();
                let _ = c.try_flush();
                if how == "drop" {
                    handles.send(c.close_handle()).unwrap();
                    return;
                }
                handles.send(c.close_handle()).unwrap();
                let _ = c.flush().await;
                // Its reader sees the end.
                while let Ok(Some(_)) = c.read().await {}
            }
        });
    });
    let mut peer = Peer::connect_stalling(server.addr());
    peer.send(b"x").unwrap();
    let close = handle.recv_timeout(SOON).unwrap();
    if how == "close" {
        close.close();
    }
    // Until everything is in the server's kernel and the FIN behind it.
    let mut got = 0;
    while got < 900_000 {
        got += peer.read_exactly(1000, SOON).map(|b| b.len()).unwrap_or(1_000_000_000);
    }
    // sleep: lets the kernels of both sides settle; too short only asks less.
    thread::sleep(Duration::from_millis(100));
    let _ = peer.send(b"one more request");
    // sleep: lets the kernels of both sides settle; too short only asks less.
    thread::sleep(Duration::from_millis(100));
    let (rest, end) = peer.read_to_end(SOON);
    (got + rest.len(), end)
}

#[test]
fn a_close_delivers_the_answer_though_the_peer_sends_meanwhile() {
    assert_eq!(answer_behind("close"), (1_000_000, Ending::Eof));
}

/// Positive control: letting go.
#[test]
fn letting_go_delivers_the_answer_though_the_peer_sends_meanwhile() {
    assert_eq!(answer_behind("drop"), (1_000_000, Ending::Eof));
}

/// A close ends reads, though the peer floods and the reader is slower than it, while output is still queued.
#[test]
fn a_close_ends_the_reads_of_a_flooded_reader() {
    let case = Case::start();
    let (handles, handle) = channel::<CloseHandle>();
    let (ended, ends) = channel();
    let server = Server::start(&case, move |b| {
        b.listen(loopback(), move |mut c: Connection| {
            let (handles, ended) = (handles.clone(), ended.clone());
            async move {
                // The peer reads nothing: the queue stays.
                c.stage(&pattern(10_000_000)).unwrap();
                let _ = c.try_flush();
                handles.send(c.close_handle()).unwrap();
                let mut n = 0;
                let result = loop {
                    match c.read().await {
                        Ok(Some(b)) => {
                            n += b.len();
                            epoxide::time::sleep(Duration::from_millis(1)).await;
                        }
                        other => break other.map(drop),
                    }
                };
                let _ = ended.send((n, result));
                c.reset();
            }
        });
    });
    let mut peer = Peer::connect(server.addr());
    let flood = thread::spawn(move || while peer.send(&[0; 16384]).is_ok() {});
    let close = handle.recv_timeout(SOON).unwrap();
    // sleep: lets the kernels of both sides settle; too short only asks less.
    thread::sleep(Duration::from_millis(300));
    close.close();
    let began = Instant::now();
    let end = ends.recv_timeout(Duration::from_secs(30));
    close.reset();
    flood.join().unwrap();
    assert!(end.is_ok(), "reads go on {:?} after the close", began.elapsed());
}
