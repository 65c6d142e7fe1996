//! B9 on tokio, one current-thread runtime.
use peers::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
fn main() {
    let all = bulk();
    let rt = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let local = tokio::task::LocalSet::new();
    local.block_on(&rt, async {
        let l = tokio::net::TcpListener::bind(addr()).await.unwrap();
        loop {
            let (mut s, _) = l.accept().await.unwrap();
            s.set_nodelay(true).unwrap();
            tokio::spawn(async move {
                let (mut h, mut buf) = (Heads::default(), vec![0u8; 16384]);
                while let Ok(n) = s.read(&mut buf).await {
                    if n == 0 { break }
                    for _ in 0..h.feed(&buf[..n]) {
                        if s.write_all(all).await.is_err() { return }
                    }
                }
            });
        }
    });
}
