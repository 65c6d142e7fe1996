//! Request bodies that stall, over both versions: a client that answers every ping is timed out all the same.

use bytes::Bytes;
use epoxide::{Connection, time};
use epoxide_pipes::{BodyTimeout, ByteStream, HttpOptions, TimedBody, serve_http};
use epoxide_tests_e2e::{Case, Peer, Server, loopback};
use http_body_util::{BodyExt, Full};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(20);
/// Ample for a client that sends on, on a loaded machine; and much less than `LONG`.
const STALL: Duration = Duration::from_secs(2);

/// Says how long the body was, 408 when it stalled. `busy`: looks at it only after twice the limit.
async fn answer(request: Request<TimedBody>, stalls: Arc<AtomicUsize>) -> Result<Response<Full<Bytes>>, Infallible> {
    if request.uri().path() == "/busy" {
        // sleep: longer than the limit, which must not count.
        time::sleep(STALL * 2).await;
    }
    Ok(match request.into_body().collect().await {
        Ok(body) => Response::new(Full::from(body.to_bytes().len().to_string())),
        Err(error) => {
            assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
            assert!(error.to_string().contains("2s"), "{error}");
            stalls.fetch_add(1, Ordering::AcqRel);
            let mut answer = Response::new(Full::default());
            *answer.status_mut() = StatusCode::REQUEST_TIMEOUT;
            answer
        }
    })
}

fn start(case: &Case, stalls: &Arc<AtomicUsize>) -> Server {
    let stalls = stalls.clone();
    Server::start(case, |b| {
        b.listen(loopback(), move |connection: Connection| {
            let stalls = stalls.clone();
            let service = service_fn(move |request| answer(request, stalls.clone()));
            // Pings every 60/16 of a second and more would hide a clock of the connection.
            let options = HttpOptions::builder().idle_timeout(Duration::from_secs(1)).build().expect("they work");
            async move { serve_http(connection, BodyTimeout::new(service, STALL), options).await.or(Ok::<_, io::Error>(())) }
        });
    })
}

#[test]
fn a_stalled_stream_is_timed_out_and_the_others_go_on() {
    let case = Case::start();
    let stalls = Arc::default();
    let server = start(&case, &stalls);
    let addr = server.addr();
    epoxide::block_on(async move {
        let connection = epoxide::connect(addr).await.unwrap();
        let (sender, driver) = h2::client::handshake(ByteStream::new(connection)).await.unwrap();
        // It answers pings, for as long as it is polled.
        let driving = epoxide::spawn_local(async move { drop(driver.await) });
        let post = |path: &str| Request::post(format!("http://test{path}")).body(()).unwrap();
        let mut sender = sender.ready().await.unwrap();
        // Stalled in the middle, stalled before the first byte, and one whose handler is busy while all of it is there.
        let (middle, mut upload) = sender.send_request(post("/"), false).unwrap();
        upload.send_data(Bytes::from_static(b"some"), false).unwrap();
        let (nothing, _silent) = sender.send_request(post("/"), false).unwrap();
        let (busy, mut late) = sender.send_request(post("/busy"), false).unwrap();
        // Two pieces, each within the limit and later than it together.
        let (slow, mut drip) = sender.send_request(post("/"), false).unwrap();
        let dripping = epoxide::spawn_local(async move {
            for piece in 0..4 {
                // sleep: a slow client, well within the limit.
                time::sleep(STALL * 2 / 5).await;
                drip.send_data(Bytes::from_static(b"drop"), piece == 3).unwrap();
            }
        });
        late.send_data(Bytes::from_static(b"whole"), true).unwrap();
        let text = async |answer: h2::client::ResponseFuture| {
            let answer = time::timeout(LONG, answer).await.expect("in time").unwrap();
            let (status, mut body) = (answer.status().as_u16(), answer.into_body());
            (status, body.data().await.map(|data| data.unwrap()))
        };
        assert_eq!(text(slow).await, (200, Some(Bytes::from_static(b"16"))), "a slow client was cut");
        dripping.await.unwrap();
        assert_eq!(text(middle).await.0, 408);
        assert_eq!(text(nothing).await.0, 408);
        assert_eq!(text(busy).await, (200, Some(Bytes::from_static(b"5"))), "a busy handler was cut");
        // The connection lives.
        sender = sender.ready().await.unwrap();
        let (again, _) = sender.send_request(post("/"), true).unwrap();
        assert_eq!(text(again).await, (200, Some(Bytes::from_static(b"0"))));
        drop((sender, upload, _silent, late));
        time::timeout(LONG, driving).await.expect("the connection ends").unwrap();
    });
    assert_eq!(stalls.load(Ordering::Acquire), 2);
}

#[test]
fn a_stalled_body_of_http1_is_timed_out() {
    let case = Case::start();
    let stalls = Arc::default();
    let server = start(&case, &stalls);
    let mut peer = Peer::connect(server.addr());
    peer.send(b"POST / HTTP/1.1\r\nhost: test\r\ncontent-length: 10\r\n\r\nsome").unwrap();
    let (answer, ending) = peer.read_to_end(LONG);
    assert!(answer.starts_with(b"HTTP/1.1 408"), "{:?}", String::from_utf8_lossy(&answer));
    assert!(ending.is_closed(), "{ending:?}");
    assert_eq!(stalls.load(Ordering::Acquire), 1);
}
