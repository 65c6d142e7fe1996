//! What the TLS peers share: the loop over any stream of tokio's. TLS 1.3, AES-128-GCM, certificates of ci/certs.
//! usage of each: PROGRAM CERTS HOST:PORT; PEER_BODY is the body's length, 13 by default.
#[path = "../../peers/src/heads.rs"]
pub mod plain;

use std::future::Future;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

pub fn file(name: &str) -> String {
    format!("{}/{name}", std::env::args().nth(1).expect("CERTS HOST:PORT"))
}

fn response() -> Vec<u8> {
    match std::env::var("PEER_BODY").ok().and_then(|n| n.parse::<usize>().ok()) {
        None => plain::RESPONSE.to_vec(),
        Some(n) => {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {n}\r\n\r\n");
            [head.as_bytes(), &vec![b'x'; n]].concat()
        }
    }
}

/// One current-thread runtime; `accept` makes the handshake.
pub fn serve<S, F>(accept: impl Fn(tokio::net::TcpStream) -> F + Clone + 'static) -> !
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
    F: Future<Output = Option<S>> + 'static,
{
    let response: &'static [u8] = response().leak();
    let rt = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let local = tokio::task::LocalSet::new();
    local.block_on(&rt, async {
        let l = tokio::net::TcpListener::bind(std::env::args().nth(2).expect("CERTS HOST:PORT")).await.unwrap();
        loop {
            let (s, _) = l.accept().await.unwrap();
            s.set_nodelay(true).unwrap();
            let accept = accept.clone();
            tokio::task::spawn_local(async move {
                let Some(mut s) = accept(s).await else { return };
                let (mut h, mut buf, mut out) = (plain::Heads::default(), vec![0u8; 16384], Vec::with_capacity(4096));
                while let Ok(n) = s.read(&mut buf).await {
                    if n == 0 {
                        break;
                    }
                    out.clear();
                    for _ in 0..h.feed(&buf[..n]) {
                        out.extend_from_slice(response);
                    }
                    if s.write_all(&out).await.is_err() || s.flush().await.is_err() {
                        break;
                    }
                }
            });
        }
    })
}
