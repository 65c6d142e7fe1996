//! What every server does, here by the kernel: on a reactor, and on a worker that the connection was moved to.

use super::{BOTH, assert_asked, context, kernel_has_tls};
use crate::client::{self, GET, HANG, answer, ask, connect};
use crate::cuts::cut_up;
use crate::servers::{World, answer_requests};
use epoxide::workers::{self, WorkersConfig};
use epoxide::{Connection, ReactorConfig};
use epoxide_pipes::Duplex;
use epoxide_tests_e2e::{Case, Server, http_reply, loopback};
use epoxide_tls::{TlsConfig, TlsConnection};
use std::future::Future;
use std::io::{self, ErrorKind, Read, Write};
use std::sync::mpsc::channel;
use std::time::Duration;

/// Whether the handler runs on a worker.
const PLACES: [bool; 2] = [false, true];

fn server_of<F, Fut>(case: &Case, reactor: ReactorConfig, config: &TlsConfig, on_worker: bool, handler: F) -> Server
where
    F: Fn(TlsConnection) -> Fut + Clone + Send + 'static,
    Fut: Future<Output = io::Result<()>> + Send + 'static,
{
    let config = config.clone();
    Server::start(case, |builder| {
        builder.config(reactor).workers(WorkersConfig { threads: 2, ..WorkersConfig::default() });
        builder.listen(loopback(), move |conn: Connection| {
            let (config, handler) = (config.clone(), handler.clone());
            let serving = async move {
                let conn = config.accept(conn).await?;
                handler(conn).await
            };
            async move { if on_worker { workers::spawn(serving).await.expect("no panic") } else { serving.await } }
        });
    })
}

async fn answer_through_pipes(conn: TlsConnection) -> io::Result<()> {
    let mut pipe = Duplex::new(conn);
    loop {
        let result = pipe.input.read_idle().await?;
        let (at, held) = (result.buffer.find(b"\r\n\r\n"), result.buffer.len());
        match at {
            Some(at) => {
                pipe.input.advance(at + 4);
                pipe.output.stage(&http_reply(200, b"tls-ok"))?;
                pipe.output.flush().await?;
            }
            None if result.end => return Ok(()),
            None => pipe.input.advance_to(0, held),
        }
    }
}

/// Every byte in a segment of its own, the handshake's too; then a byte a record.
#[test]
fn a_request_in_single_bytes_gets_one_answer() {
    let case = Case::start();
    let world = World::new();
    for (ktls, on_worker) in BOTH.into_iter().flat_map(|ktls| PLACES.map(|place| (ktls, place))) {
        for pipes in [false, true] {
            let config = world.options().ktls(ktls).build().unwrap();
            let reactor = ReactorConfig::default();
            let server = match pipes {
                false => server_of(&case, reactor, &config, on_worker, answer_requests),
                true => server_of(&case, reactor, &config, on_worker, answer_through_pipes),
            };
            let mut cut = cut_up(server.addr(), &context(&world), 1);
            cut.write_all(GET.as_bytes()).unwrap();
            cut.shutdown().unwrap();
            let mut text = String::new();
            cut.read_to_string(&mut text).unwrap();
            assert_eq!(text.matches("tls-ok").count(), 1, "{ktls:?} {on_worker} {pipes}: {text}");
            let mut client = connect(server.addr(), &context(&world));
            assert!(ask(&mut client, GET).unwrap().ends_with("tls-ok"));
            for byte in GET.as_bytes() {
                client.write_all(&[*byte]).unwrap();
            }
            assert!(answer(&mut client).unwrap().ends_with("tls-ok"));
            assert_asked(&config, 2);
        }
    }
}

/// A handler that is busy for longer than the read clock has not waited; one whose client is silent has.
#[test]
fn the_read_clock_runs_for_silent_clients_and_not_for_busy_handlers() {
    const CLOCK: Duration = Duration::from_millis(500);
    let case = Case::start();
    let world = World::new();
    for (ktls, on_worker) in BOTH.into_iter().flat_map(|ktls| PLACES.map(|place| (ktls, place))) {
        let config = world.options().ktls(ktls).build().unwrap();
        let reactor = ReactorConfig { read_timeout: CLOCK, ..ReactorConfig::default() };
        let (tell, told) = channel();
        let server = server_of(&case, reactor, &config, on_worker, move |mut conn| {
            let tell = tell.clone();
            async move {
                assert_eq!(conn.facts().kernel_tx(), kernel_has_tls());
                let first = conn.read().await?.expect("a request");
                // sleep: what keeps the handler busy, for longer than two ticks and the clock.
                epoxide::time::sleep(3 * CLOCK).await;
                conn.send_all(&first).await?;
                let then = conn.read().await.map(|data| data.map(|data| data.to_vec()));
                tell.send(then).unwrap();
                let silent = conn.read().await.map(|data| data.map(|data| data.to_vec()));
                tell.send(silent).unwrap();
                Ok(())
            }
        });
        let mut client = client::connect(server.addr(), &context(&world));
        client.write_all(b"work").unwrap();
        client.read_exact(&mut [0; 4]).unwrap();
        client.write_all(b"slow-but-here").unwrap();
        let then = told.recv_timeout(HANG).unwrap().unwrap();
        assert_eq!(then.as_deref(), Some(&b"slow-but-here"[..]), "{ktls:?} {on_worker}");
        let error = told.recv_timeout(HANG).expect("the clock does not run").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{ktls:?} {on_worker}: {error}");
    }
}
