//! tokio's IO traits over streams, pipes and their two sides, through tokio's own adapters, with no tokio runtime; and
//! that the feature brings none.

mod common;

use common::{SOON, everywhere, is_sent_back, small, speak};
use epoxide_pipes::{ByteStream, Duplex, PipeReader, PipeWriter};
use epoxide_tests_e2e::{Case, Ending, Peer, pattern};
use std::io::{self, IoSlice};
use std::process::Command;
use tokio::io::{
    AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, copy_bidirectional, copy_buf, split,
};

/// A line, a number of bytes of body, an answer in two slices, our end; then the rest up to the peer's end.
async fn serve(stream: impl AsyncRead + AsyncWrite + Send) -> io::Result<()> {
    let (reading, mut writing) = split(stream);
    let mut reading = BufReader::with_capacity(16, reading);
    let mut line = String::new();
    reading.read_line(&mut line).await?;
    let mut body = vec![0; line.trim().parse().unwrap()];
    reading.read_exact(&mut body).await?;
    assert!(body == pattern(body.len()));
    assert!(writing.is_write_vectored());
    let head = format!("{} bytes\n", body.len());
    let mut left = 0;
    while left < head.len() {
        left += writing.write_vectored(&[IoSlice::new(&head.as_bytes()[left..]), IoSlice::new(b"")]).await?;
    }
    writing.write_all(&body).await?;
    writing.flush().await?;
    writing.shutdown().await?;
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
    async fn copy(mut input: PipeReader, mut output: PipeWriter) -> io::Result<()> {
        assert_eq!(copy_buf(&mut input, &mut output).await?, 100_000);
        output.shutdown().await
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

/// Against tokio's own duplex in memory: a relay with half-closes on both sides.
#[test]
fn a_relay_by_copy_bidirectional_keeps_half_closes() {
    let case = Case::start();
    let server = everywhere(&case, small(1000), |connection| async move {
        let mut stream = ByteStream::new(connection);
        let (mut near, mut far) = tokio::io::duplex(100);
        let behind = async move {
            let mut all = Vec::new();
            far.read_to_end(&mut all).await?;
            all.reverse();
            far.write_all(&all).await?;
            far.shutdown().await
        };
        let relay = copy_bidirectional(&mut stream, &mut near);
        let (moved, done) = futures_util::future::join(relay, behind).await;
        assert_eq!(moved?, (50_000, 50_000));
        done
    });
    for addr in server.addrs() {
        let mut peer = Peer::connect(*addr);
        peer.send(&pattern(50_000)).unwrap();
        peer.half_close().unwrap();
        let mut expected = pattern(50_000);
        expected.reverse();
        assert!(peer.read_to_end(SOON) == (expected, Ending::Eof));
    }
}

/// The dependency tree of a user of the feature: tokio with its traits, and nothing of its runtime.
#[test]
fn the_feature_brings_no_tokio_runtime() {
    let tree = |features: &str| {
        let output = Command::new(env!("CARGO"))
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .args(["tree", "--offline", "--locked", "-p", "epoxide-pipes", "-e", "normal", "--prefix", "none"])
            .args(["--format", "{p} [{f}]", "--features", features])
            .output()
            .expect("cargo is there");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let tokio_of = |tree: &str| tree.lines().find(|line| line.starts_with("tokio v")).map(str::to_owned);
    assert_eq!(tokio_of(&tree("")), None, "without the feature there is no tokio");
    let tree = tree("tokio");
    let tokio = tokio_of(&tree).expect("the feature is tokio");
    let features =
        tokio.split_once('[').map(|(_, features)| features.trim_end_matches([']', ' ', '(', '*', ')'])).unwrap();
    for feature in features.split(',').filter(|feature| !feature.is_empty()) {
        assert!(
            ["default", "bytes", "io-util"].contains(&feature),
            "tokio's feature {feature} is no IO trait: {tokio}"
        );
    }
    for crate_of_a_runtime in ["mio v", "socket2 v", "signal-hook"] {
        assert!(!tree.contains(crate_of_a_runtime), "{crate_of_a_runtime} is in the tree:\n{tree}");
    }
}
