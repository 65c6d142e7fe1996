//! A connection as pipes and as a stream, once through.

use epoxide::Connection;
use epoxide_pipes::{ByteStream, Duplex};
use epoxide_tests_e2e::{Case, Peer, Server, loopback};
use std::io;
use std::time::Duration;

async fn by_pipe(connection: Connection) -> io::Result<()> {
    let mut pipe = Duplex::new(connection);
    loop {
        let result = pipe.input.read_idle().await?;
        if result.end && result.buffer.is_empty() {
            return pipe.output.shutdown().await;
        }
        let n = result.buffer.len();
        for slice in result.buffer {
            pipe.output.stage(slice)?;
        }
        pipe.input.advance(n);
        if pipe.output.flush().await?.completed {
            return Ok(());
        }
    }
}

async fn by_stream(connection: Connection) -> io::Result<()> {
    let mut stream = ByteStream::new(connection);
    let mut space = [0; 4096];
    loop {
        match stream.read(&mut space).await? {
            0 => return stream.shutdown().await,
            n => stream.write_all(&space[..n]).await?,
        }
    }
}

#[test]
fn an_echo_by_pipe_and_by_stream() {
    let case = Case::start();
    let server = Server::start(&case, |b| {
        b.listen(loopback(), by_pipe);
        b.listen(loopback(), by_stream);
    });
    for addr in server.addrs() {
        let mut peer = Peer::connect(*addr);
        peer.send(b"hello").unwrap();
        assert_eq!(peer.read_exactly(5, Duration::from_secs(10)).unwrap(), b"hello");
        peer.half_close().unwrap();
        assert!(peer.ending(Duration::from_secs(10)).is_closed());
    }
}
