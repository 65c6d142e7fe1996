//! Start hooks are finished, or have failed, when the runtime is handed out; a handler that holds
//! its buffers stalls its peer and nothing else.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use epoxide::{Connection, ReactorConfig};
use epoxide_tests_e2e::{Case, Ending, Gate, Http, Peer, Server, http_ok, loopback, pattern, provoke_panic, stage};

/// HRD-01.
#[test]
fn start_hooks_have_finished_when_the_runtime_is_handed_out() {
    let case = Case::start();
    let finished = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&finished);
    let server = Server::start(&case, |b| {
        b.reactors(2);
        b.on_start(move |_reactor| {
            // sleep: a slow hook is the stimulus.
            std::thread::sleep(Duration::from_millis(200));
            counted.fetch_add(1, Ordering::SeqCst);
        });
        b.listen(loopback(), http_ok);
    });
    assert_eq!(finished.load(Ordering::SeqCst), 2, "one per reactor");
    assert_eq!(Http::connect(server.addr()).get().map(|r| r.status), Ok(200));
}

/// HRD-02: the text of the failure arrives at whoever builds, and nothing is left behind.
#[test]
fn a_failing_start_hook_fails_the_build_with_its_own_words() {
    let case = Case::start();
    let refused = Server::try_start(&case, |b| {
        b.on_start(|_reactor| -> Result<(), String> {
            // sleep: a slow hook is the stimulus.
            std::thread::sleep(Duration::from_millis(200));
            Err("the cache is cold".into())
        });
        b.listen(loopback(), http_ok);
    });
    let error = refused.map(|_| ()).expect_err("a failing hook is an error");
    assert!(error.to_string().contains("the cache is cold"), "{error}");
    // The reactor did not die of it: nothing to claim (the case checks).
}

/// The same for a hook that panics.
#[test]
fn a_panicking_start_hook_fails_the_build() {
    let case = Case::start();
    let refused = Server::try_start(&case, |b| {
        b.on_start(|_reactor| provoke_panic("in a start hook"));
        b.listen(loopback(), http_ok);
    });
    assert!(refused.map(|_| ()).is_err());
    let _ = case.claim_faults();
}

/// HRD-03, translated: the pool grows or the kernel's window closes, but nobody is torn down for
/// holding buffers, and another connection is served meanwhile.
#[test]
fn a_handler_that_holds_its_buffers_stalls_and_later_gets_every_byte() {
    let case = Case::start();
    let (gate, (held, held_rx)) = (Gate::new(), channel());
    let handler_gate = gate.clone();
    let expected = pattern(24 * 1024);
    let flood = expected.clone();
    let server = Server::start(&case, |b| {
        b.config(ReactorConfig { recv_buffer_size: 1024, ..ReactorConfig::default() });
        b.listen(loopback(), move |mut connection: Connection| {
            let (gate, held, expected) = (handler_gate.clone(), held.clone(), expected.clone());
            async move {
                let mut buffers = Vec::new();
                let mut count = 0;
                while count < expected.len() {
                    let Some(buffer) = connection.read().await? else { break };
                    count += buffer.len();
                    buffers.push(buffer);
                    if !gate.is_open() {
                        let _ = held.send(());
                        gate.wait().await;
                    }
                }
                let intact = buffers.iter().flat_map(|b| b.iter().copied()).eq(expected);
                stage(&mut connection, if intact { b"done" } else { b"torn" })?;
                connection.shutdown().await
            }
        });
        b.listen(loopback(), http_ok);
    });
    let mut peer = Peer::connect(server.addrs()[0]);
    peer.send(&flood[..1024]).unwrap();
    held_rx.recv_timeout(Duration::from_secs(10)).expect("the handler holds its first buffer");
    peer.send(&flood[1024..]).unwrap();
    assert!(server.stats().buffers_outstanding >= 1, "vacuity: no buffer is held");
    assert_eq!(Http::connect(server.addrs()[1]).get().map(|r| r.status), Ok(200));
    gate.open();
    let (answer, ending) = peer.read_to_end(Duration::from_secs(8));
    assert_eq!((String::from_utf8_lossy(&answer).as_ref(), ending), ("done", Ending::Eof));
    let _: io::Result<()> = peer.half_close();
}
