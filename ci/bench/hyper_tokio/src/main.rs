//! hyper on tokio, one current-thread runtime: what the sample `http1` is compared with. Its limits are hyper's own, with
//! tokio's timer for the head's, as a server would have them. usage: hyper_tokio HOST:PORT
use bytes::Bytes;
use http_body_util::Full;
use hyper::server::conn::http1;
use hyper::{Response, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;

fn main() -> std::io::Result<()> {
    let addr = std::env::args().nth(1).expect("usage: hyper_tokio HOST:PORT");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        let listener = tokio::net::TcpListener::bind(addr).await?;
        let body = Bytes::from_static(b"Hello, World!");
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let body = body.clone();
            tokio::task::spawn_local(async move {
                let service = service_fn(move |_| {
                    std::future::ready(Ok::<_, Infallible>(Response::new(Full::new(body.clone()))))
                });
                let mut builder = http1::Builder::new();
                builder.timer(TokioTimer::new()).max_headers(100);
                let _ = builder.serve_connection(TokioIo::new(stream), service).with_upgrades().await;
            });
        }
    })
}
