//! The traits of `futures-io`, over streams, pipes and their two sides, through `futures-util`'s own adapters.

mod common;

use common::{SOON, everywhere, is_sent_back, small, speak};
use epoxide_pipes::{ByteStream, Duplex, PipeReader, PipeWriter};
use epoxide_tests_e2e::{Case, Peer, pattern};
use futures_util::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::mpsc::channel;

/// A line, a number of bytes of body, an answer in two slices, our end; then the rest up to the peer's end.
async fn serve(stream: impl AsyncRead + AsyncWrite + Send) -> io::Result<()> {
    let (reading, mut writing) = stream.split();
    let mut reading = BufReader::with_capacity(16, reading);
    let mut line = String::new();
    reading.read_line(&mut line).await?;
    let mut body = vec![0; line.trim().parse().unwrap()];
    reading.read_exact(&mut body).await?;
    assert!(body == pattern(body.len()));
    let head = format!("{} bytes\n", body.len());
    let mut left = 0;
    while left < head.len() {
        left += writing.write_vectored(&[IoSlice::new(&head.as_bytes()[left..]), IoSlice::new(b"")]).await?;
    }
    writing.write_all(&body).await?;
    writing.flush().await?;
    writing.close().await?;
    assert_eq!(writing.write(b"x").await.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    let mut rest = Vec::new();
    reading.read_to_end(&mut rest).await?;
    assert_eq!(rest, b"the rest");
    Ok(())
}

#[test]
fn streams_and_duplexes_have_the_traits() {
    let case = Case::start();
    let config = small(1000);
    let stream = everywhere(&case, config.clone(), |connection| serve(ByteStream::new(connection)));
    let duplex = everywhere(&case, config, |connection| serve(Duplex::new(connection)));
    for addr in stream.addrs().iter().chain(duplex.addrs()) {
        speak(*addr);
    }
}

/// The two sides on their own; `AsyncBufRead` lends the pooled buffers themselves.
#[test]
fn readers_and_writers_have_the_traits() {
    async fn copy(input: PipeReader, mut output: PipeWriter) -> io::Result<()> {
        let n = futures_util::io::copy_buf(input, &mut output).await?;
        assert_eq!(n, 100_000);
        output.close().await
    }
    let case = Case::start();
    let server = everywhere(&case, small(1000), |connection| {
        let (input, output) = Duplex::new(connection).into_parts();
        copy(input, output)
    });
    for addr in server.addrs() {
        is_sent_back(*addr, 100_000);
    }
}

/// Vectored reads fill slice after slice with what is there, and never wait for more once something came.
#[test]
fn vectored_reads_take_what_is_there() {
    let case = Case::start();
    let (tell, told) = channel::<()>();
    let server = everywhere(&case, small(1000), move |connection| {
        let tell = tell.clone();
        async move {
            let mut stream = ByteStream::new(connection);
            let (mut a, mut b, mut c) = ([0; 2], [0; 3], [0; 100]);
            let mut spaces =
                [IoSliceMut::new(&mut []), IoSliceMut::new(&mut a), IoSliceMut::new(&mut b), IoSliceMut::new(&mut c)];
            assert_eq!(stream.read_vectored(&mut spaces).await?, 9);
            assert_eq!((&a, &b, &c[..4]), (b"ab", b"cde", b"fghi".as_slice()));
            let _ = tell.send(());
            assert_eq!(stream.read_vectored(&mut [IoSliceMut::new(&mut a)]).await?, 0);
            assert_eq!(stream.read_vectored(&mut []).await?, 0);
            Ok(())
        }
    });
    for addr in server.addrs() {
        let mut peer = Peer::connect(*addr);
        peer.send(b"abcdefghi").unwrap();
        told.recv_timeout(SOON).unwrap();
    }
}
