//! B9 on smol, one thread.
use peers::*;
use smol::io::{AsyncReadExt, AsyncWriteExt};
fn main() {
    let all = bulk();
    let ex = smol::LocalExecutor::new();
    smol::block_on(ex.run(async {
        let l = smol::net::TcpListener::bind(addr()).await.unwrap();
        loop {
            let (mut s, _) = l.accept().await.unwrap();
            s.set_nodelay(true).unwrap();
            ex.spawn(async move {
                let (mut h, mut buf) = (Heads::default(), vec![0u8; 16384]);
                while let Ok(n) = s.read(&mut buf).await {
                    if n == 0 { break }
                    for _ in 0..h.feed(&buf[..n]) {
                        if s.write_all(all).await.is_err() { return }
                    }
                }
            }).detach();
        }
    }));
}
