//! The samples of HTTP over TLS as programs: curl by their start lines, and WebSockets over a session.

#[allow(dead_code, reason = "other samples need more of it")]
mod common;
mod secure;

use async_tungstenite::tungstenite::protocol::CloseFrame;
use async_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use async_tungstenite::tungstenite::{Error, Message};
use async_tungstenite::{WebSocketStream, client_async};
use common::Sample;
use epoxide_pipes::ByteStream;
use epoxide_tests_e2e::Gate;
use epoxide_tls::{Pem, TlsConfig, TlsReadHalf, TlsWriteHalf};
use futures_util::StreamExt;
use secure::{CERTS, curl, start, try_it};
use std::io::Read;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

const HTTPS_AXUM: &str = env!("CARGO_BIN_EXE_https_axum");
const WSS_HUB: &str = env!("CARGO_BIN_EXE_wss_hub");

type Socket = WebSocketStream<ByteStream<TlsReadHalf, TlsWriteHalf>>;

/// A WebSocket of our own client.
async fn connect(sample: &Sample) -> Socket {
    let roots = Pem::path(Path::new(CERTS.as_str()).join("ca.pem"));
    let tls = TlsConfig::client().roots(roots).alpn(["http/1.1"]).build().unwrap();
    let session = tls.connect(sample.addr, "localhost").await.unwrap();
    let url = format!("wss://localhost:{}/ws", sample.addr.port());
    client_async(url, ByteStream::new(session)).await.expect("the handshake").0
}

/// The server says 1001, then ends the session with a close_notify: a cut would be an error.
async fn away(mut socket: Socket) {
    match socket.next().await {
        Some(Ok(Message::Close(Some(CloseFrame { code: CloseCode::Away, .. })))) => {}
        other => panic!("no good-bye: {other:?}"),
    }
    assert!(matches!(socket.next().await, None | Some(Err(Error::ConnectionClosed))));
}

#[test]
fn the_axum_app_answers_in_both_versions() {
    let sample = start(HTTPS_AXUM, &[]);
    for (flag, version) in [("--http1.1", "1.1"), ("--http2", "2")] {
        let (answer, status) = try_it(&sample, &[flag, "-w", " %{http_version}\n%{http_code}"]);
        assert_eq!((&*answer, &*status), (&*format!(r#"{{"hello":"world"}} {version}"#), "200"));
        let url = |path| format!("https://localhost:{}{path}", sample.addr.port());
        let (answer, status) = try_it(
            &sample,
            &[
                flag,
                "--next",
                "--cacert",
                &format!("{}/ca.pem", *CERTS),
                "-sS",
                flag,
                "-w",
                "\n%{http_code}",
                "--resolve",
                &format!("localhost:{}:127.0.0.1", sample.addr.port()),
                &url("/stream"),
            ],
        );
        assert!(answer.ends_with("line 8\nline 9\n") && status == "200", "{answer}");
    }
    assert!(sample.stop().contains(" 0 connections cut"));
}

#[test]
fn the_axum_app_echoes_and_says_good_bye() {
    let sample = start(HTTPS_AXUM, &[]);
    epoxide::block_on(async {
        let mut socket = connect(&sample).await;
        for message in [Message::text("hello"), Message::binary(vec![7; 500_000]), Message::text("")] {
            socket.send(message.clone()).await.unwrap();
            assert_eq!(socket.next().await.unwrap().unwrap(), message);
        }
        sample.interrupt();
        away(socket).await;
    });
    sample.stopped();
}

#[test]
fn the_hub_tells_everybody() {
    let sample = start(WSS_HUB, &[]);
    // Looks on, as the start line says.
    let mut looker = curl(&sample, "look on: ").arg("-sS").stdout(Stdio::piped()).spawn().unwrap();
    let mut shown = looker.stdout.take().unwrap();
    let sees = Gate::new();
    let told = sees.clone();
    let looks = std::thread::spawn(move || {
        let (mut text, mut space) = (Vec::new(), [0; 4096]);
        while let Ok(n @ 1..) = shown.read(&mut space) {
            text.extend_from_slice(&space[..n]);
            // As a frame of text.
            if text.windows(8).any(|eight| eight == b"\x81\x06to all") {
                told.open();
            }
        }
    });
    epoxide::block_on(async {
        let (mut first, mut second) = (connect(&sample).await, connect(&sample).await);
        // A member for certain: it is answered from within the hub.
        for socket in [&mut first, &mut second] {
            socket.send(Message::Ping("in?".into())).await.unwrap();
            assert_eq!(socket.next().await.unwrap().unwrap(), Message::Pong("in?".into()));
        }
        // Again until curl shows it: nothing tells that it has joined.
        for message in std::iter::repeat_n(Message::text("to all"), 1000).chain([Message::binary(vec![3; 300_000])]) {
            if matches!(message, Message::Text(_)) && sees.is_open() {
                continue;
            }
            first.send(message.clone()).await.unwrap();
            for socket in [&mut first, &mut second] {
                assert_eq!(socket.next().await.unwrap().unwrap(), message);
            }
            let _ = epoxide::time::timeout(Duration::from_millis(50), sees.wait()).await;
        }
        assert!(sees.is_open(), "curl shows nothing");
        sample.interrupt();
        away(first).await;
        away(second).await;
    });
    let rest = sample.stopped();
    assert!(rest.contains("members 0\n"), "{rest}");
    looks.join().unwrap();
    looker.wait().unwrap();
}
