//! An answer that was cut must not look whole: a body that ends with the connection (HTTP/1.0) has no other end.

mod common;

use bytes::Bytes;
use common::everywhere;
use epoxide::ReactorConfig;
use epoxide_pipes::{HttpOptions, serve_http_send};
use epoxide_tests_e2e::{Case, Ending, Gate, GateWait, Peer, Server, wait_until};
use futures_util::future::select;
use http_body_util::Full;
use hyper::body::{Body, Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use std::collections::VecDeque;
use std::future::{pending, ready};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready as or_pending};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(300);

/// What a body does, one after the other.
#[derive(Clone)]
enum Step {
    Data(usize),
    Wait(Gate),
    Fail,
}

/// Opens `gone` when it is dropped; the request's body goes with it.
struct Script {
    _request: Incoming,
    steps: VecDeque<Step>,
    waits: Option<GateWait>,
    gone: Gate,
}

impl Drop for Script {
    fn drop(&mut self) {
        self.gone.open();
    }
}

impl Body for Script {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        loop {
            if let Some(waits) = &mut self.waits {
                or_pending!(Pin::new(waits).poll(cx));
                self.waits = None;
            }
            match self.steps.pop_front() {
                None => return Poll::Ready(None),
                Some(Step::Data(n)) => return Poll::Ready(Some(Ok(Frame::data(vec![b'x'; n].into())))),
                Some(Step::Fail) => return Poll::Ready(Some(Err(io::Error::other("provoked on purpose")))),
                Some(Step::Wait(gate)) => self.waits = Some(gate.wait()),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.steps.is_empty() && self.waits.is_none()
    }
}

/// What a test and its server share.
#[derive(Clone, Default)]
struct Desk {
    /// Opens when a body was dropped.
    gone: Gate,
    /// Opened by the test: the serving future is dropped.
    stop: Gate,
    /// Opens when a connection is served no more.
    over: Gate,
}

/// Serves the script to every request, on a reactor and on workers.
fn start(case: &Case, options: HttpOptions, steps: &[Step], desk: &Desk) -> Server {
    let (steps, desk) = (VecDeque::from(steps.to_vec()), desk.clone());
    everywhere(case, ReactorConfig::default(), move |connection| {
        let (steps, Desk { gone, stop, over }) = (steps.clone(), desk.clone());
        async move {
            let service = service_fn(move |request: Request<Incoming>| {
                let _request = request.into_body();
                let body = Script { _request, steps: steps.clone(), waits: None, gone: gone.clone() };
                ready(Ok::<_, io::Error>(Response::new(body)))
            });
            // Whichever comes first; the other is dropped.
            select(pin!(serve_http_send(connection, service, options)), pin!(stop.wait())).await;
            over.open();
            Ok(())
        }
    })
}

/// The head of the answer and the first so many bytes of its body.
fn first_bytes(peer: &mut Peer, n: usize) {
    let mut all = Vec::new();
    while !all.ends_with(b"\r\n\r\n") {
        all.extend(peer.read_exactly(1, LONG).expect("a head"));
    }
    assert!(all.starts_with(b"HTTP/1.0 200") && !String::from_utf8_lossy(&all).contains("content-length"));
    assert_eq!(peer.read_exactly(n, LONG).expect("its body begins"), vec![b'x'; n]);
}

/// What happens to the connection when `cut` is called in the middle of an answer without a length.
fn ending_of_a_cut_answer(last: Step, cut: impl Fn(&mut Peer, &Gate, &Desk)) {
    let case = Case::start();
    for place in 0..2 {
        let (go, desk) = (Gate::new(), Desk::default());
        let steps = [Step::Data(1000), Step::Wait(go.clone()), last.clone()];
        let server = start(&case, HttpOptions::default(), &steps, &desk);
        let mut peer = Peer::connect(server.addrs()[place]);
        peer.send(b"GET / HTTP/1.0\r\n\r\n").unwrap();
        first_bytes(&mut peer, 1000);
        cut(&mut peer, &go, &desk);
        assert_eq!(peer.read_to_end(LONG), (Vec::new(), Ending::Reset), "place {place}: it looks whole");
        assert!(desk.gone.wait_blocking(LONG));
    }
}

#[test]
fn a_body_that_fails_resets_the_connection() {
    ending_of_a_cut_answer(Step::Fail, |_, go, _| go.open());
}

#[test]
fn a_client_that_half_closes_is_not_told_a_part_for_the_whole() {
    ending_of_a_cut_answer(Step::Fail, |peer, _, _| peer.half_close().unwrap());
}

#[test]
fn a_server_that_is_given_up_in_the_middle_resets() {
    ending_of_a_cut_answer(Step::Fail, |_, _, desk| desk.stop.open());
}

/// The controls: what is whole ends with a FIN, also when something wrong follows it.
#[test]
fn a_whole_answer_ends_with_a_fin() {
    let case = Case::start();
    for place in 0..2 {
        let desk = Desk::default();
        let server = start(&case, HttpOptions::default(), &[Step::Data(1000)], &desk);
        for (sent, last) in [
            (&b"GET / HTTP/1.0\r\n\r\n"[..], &b"x"[..]),
            (b"GET / HTTP/1.1\r\n\r\n\x16\x03\x01\r\n\r\n", b"HTTP/1.1 400 Bad Request"),
            (b"HEAD / HTTP/1.1\r\n\r\n\x16\x03\x01\r\n\r\n", b"HTTP/1.1 400 Bad Request"),
        ] {
            let mut peer = Peer::connect(server.addrs()[place]);
            peer.send(sent).unwrap();
            let (answer, ending) = peer.read_to_end(LONG);
            assert!(answer.windows(last.len()).any(|part| part == last), "{}", String::from_utf8_lossy(&answer));
            assert_eq!(ending, Ending::Eof, "place {place}");
        }
        // And given up while it is idle.
        let mut idle = Peer::connect(server.addrs()[place]);
        idle.send(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        assert!(idle.read_exactly(1000, LONG).is_ok() && desk.gone.wait_blocking(LONG));
        desk.stop.open();
        assert_eq!(idle.ending(LONG), Ending::Eof, "place {place}");
    }
}

/// A client that does not read its answer and begins another head: the 408 for that one comes behind the answer, never
/// inside of it.
#[test]
fn a_head_that_times_out_leaves_the_answer_before_it_alone() {
    const SIZE: usize = 32 << 20;
    let case = Case::start();
    for place in 0..2 {
        let desk = Desk::default();
        let options = HttpOptions::builder().head_timeout(SHORT).min_send_rate(0).build().unwrap();
        let server = start(&case, options, &[Step::Data(SIZE)], &desk);
        let mut peer = Peer::connect_stalling(server.addrs()[place]);
        peer.send(b"POST / HTTP/1.1\r\ncontent-length: 5\r\n\r\nhello").unwrap();
        assert!(desk.gone.wait_blocking(LONG), "vacuity: the answer is made, and most of it waits");
        peer.send(b"GET / HT").unwrap();
        // sleep: the head's clock must not count yet; it has no signal that it does not.
        std::thread::sleep(SHORT * 2);
        let (answer, ending) = peer.read_to_end(LONG);
        let at = |part: &[u8]| memchr::memmem::find(&answer, part);
        let (end, told) = (at(b"x\r\n0\r\n\r\n"), at(b"HTTP/1.1 408"));
        assert!(answer.len() > SIZE && end.is_some(), "place {place}: {} bytes, {ending:?}", answer.len());
        assert!(told.is_some() && told > end && ending == Ending::Eof, "place {place}: 408 at {told:?}, {ending:?}");
    }
}

/// A client that leaves while its second request is in progress: the first answer, all of it sent, still reaches it.
#[test]
fn an_answer_that_was_sent_is_not_taken_back() {
    const SIZE: usize = 200_000;
    let case = Case::start();
    for place in 0..2 {
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = asked.clone();
        let server = everywhere(&case, ReactorConfig::default(), move |connection| {
            let asked = counted.clone();
            let service = service_fn(move |_: Request<Incoming>| {
                let first = asked.fetch_add(1, Ordering::AcqRel) == 0;
                async move {
                    if !first {
                        pending::<()>().await;
                    }
                    Ok::<_, io::Error>(Response::new(Full::new(Bytes::from(vec![b'x'; SIZE]))))
                }
            });
            serve_http_send(connection, service, HttpOptions::default())
        });
        let mut peer = Peer::connect(server.addrs()[place]);
        peer.send_with_fin(b"GET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n").unwrap();
        assert!(wait_until(LONG, || asked.load(Ordering::Acquire) == 2 && server.stats().open == 0));
        let (answer, ending) = peer.read_to_end(LONG);
        assert!(answer.len() > SIZE && ending == Ending::Eof, "place {place}: {} bytes, {ending:?}", answer.len());
    }
}

/// Keeps the script honest: a step that waits does.
#[test]
fn a_body_that_waits_is_streamed() {
    let case = Case::start();
    let (go, desk) = (Gate::new(), Desk::default());
    let steps = [Step::Data(10), Step::Wait(go.clone()), Step::Data(5)];
    let server = start(&case, HttpOptions::default(), &steps, &desk);
    let mut peer = Peer::connect(server.addr());
    peer.send(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    first_bytes(&mut peer, 10);
    assert!(!desk.gone.is_open());
    go.open();
    assert_eq!(peer.read_to_end(LONG), (b"xxxxx".to_vec(), Ending::Eof));
}
