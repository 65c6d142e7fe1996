//! B9 on monoio's epoll (legacy) driver.
use monoio::io::{AsyncReadRent, AsyncWriteRentExt};
use peers::*;
fn main() {
    let all = bulk();
    monoio::RuntimeBuilder::<monoio::LegacyDriver>::new().build().unwrap().block_on(async {
        let l = monoio::net::TcpListener::bind(addr()).unwrap();
        loop {
            let (mut s, _) = l.accept().await.unwrap();
            s.set_nodelay(true).unwrap();
            monoio::spawn(async move {
                let (mut h, mut buf) = (Heads::default(), vec![0u8; 16384]);
                loop {
                    let (r, b) = s.read(buf).await;
                    buf = b;
                    let Ok(n) = r else { return };
                    if n == 0 { return }
                    for _ in 0..h.feed(&buf[..n]) {
                        if s.write_all(all).await.0.is_err() { return }
                    }
                }
            });
        }
    })
}
