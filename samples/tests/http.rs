//! The samples on HTTP crates, as a user runs them.

mod common;

use async_tungstenite::tungstenite::client::IntoClientRequest;
use async_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use async_tungstenite::tungstenite::{Message, client};
use common::{Sample, help};
use std::io::{Read, Write};

/// One request on a connection of its own, and all that comes back.
fn ask(sample: &Sample, request: &str) -> String {
    let mut stream = sample.connect();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("the answer ends with the connection");
    answer
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n")
}

fn post(path: &str, kind: &str, body: &str) -> String {
    let len = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-type: {kind}\r\ncontent-length: {len}\r\n\r\n{body}"
    )
}

#[test]
fn http1_and_http2_answer_and_drain() {
    for program in [env!("CARGO_BIN_EXE_http1"), env!("CARGO_BIN_EXE_http2")] {
        let sample = Sample::start(program, &["--body", "bench"]);
        assert!(sample.first_line.contains("try: curl http://"), "{}", sample.first_line);
        assert!(ask(&sample, &get("/")).ends_with("\r\n\r\nHello, World!"));
        assert!(ask(&sample, &post("/echo", "text/plain", "there and back")).ends_with("there and back"));
        let mut idle = sample.connect();
        sample.stop();
        assert!(help(program).contains("--body"));
        assert_eq!(idle.read(&mut [0; 64]).unwrap(), 0, "an idle connection ends with FIN");
    }
}

#[test]
fn the_proxy_passes_on() {
    let behind = Sample::start(env!("CARGO_BIN_EXE_http1"), &["--body", "100000"]);
    let upstream = behind.addr.to_string();
    let mut front = Sample::start_heard(env!("CARGO_BIN_EXE_proxy"), &["--http", "--to", &upstream]);
    let mut complaints = front.stderr();
    for _ in 0..3 {
        let answer = ask(&front, &get("/"));
        assert!(answer.starts_with("HTTP/1.1 200") && answer.len() > 100_000, "{}", &answer[..20]);
    }
    assert!(ask(&front, &post("/echo", "text/plain", "there and back")).ends_with("there and back"));
    // A body that is none: the client's fault, and nobody else is blamed for it.
    let broken = "POST /echo HTTP/1.1\r\nhost: test\r\ntransfer-encoding: chunked\r\n\r\nnone\r\n";
    let answer = ask(&front, broken);
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    behind.stop();
    assert!(ask(&front, &get("/")).starts_with("HTTP/1.1 502"));
    front.stop();
    let mut said = String::new();
    complaints.read_to_string(&mut said).unwrap();
    assert!(said.lines().count() == 1 && said.contains("clients are turned away"), "{said}");
}

#[test]
fn the_axum_app_answers() {
    let sample = Sample::start(env!("CARGO_BIN_EXE_axum_app"), &[]);
    let addr = sample.addr;
    for hint in
        [format!("curl http://{addr}/api/hello "), format!("http://{addr}/ in a browser"), format!("ws://{addr}/ws")]
    {
        assert!(sample.first_line.contains(&hint), "{hint} is not in {}", sample.first_line);
    }
    assert!(ask(&sample, &get("/")).contains("<title>axum on epoxide</title>"));
    assert!(ask(&sample, &get("/api/hello")).ends_with(r#"{"hello":"world"}"#));
    let sum = ask(&sample, &post("/api/sum", "application/json", r#"{"numbers":[1,2,3.5]}"#));
    assert!(sum.ends_with(r#"{"sum":6.5}"#), "{sum}");
    let streamed = ask(&sample, &get("/stream"));
    assert!(streamed.contains("transfer-encoding: chunked") && streamed.contains("line 9\n"), "{streamed}");
    assert!(ask(&sample, &get("/ws")).starts_with("HTTP/1.1 426"));
    sample.stop();
}

#[test]
fn the_axum_app_echoes_over_a_websocket_and_says_good_bye() {
    let sample = Sample::start(env!("CARGO_BIN_EXE_axum_app"), &[]);
    let url = format!("ws://{}/ws", sample.addr);
    let (mut socket, _) = client(&url, sample.connect()).expect("the handshake");
    for message in [Message::text("hello"), Message::binary(vec![7; 500_000]), Message::text("")] {
        socket.send(message.clone()).unwrap();
        assert_eq!(socket.read().unwrap(), message);
    }
    socket.send(Message::Ping("here".into())).unwrap();
    assert_eq!(socket.read().unwrap(), Message::Pong("here".into()));
    let mut foreign = url.as_str().into_client_request().unwrap();
    foreign.headers_mut().insert("origin", "http://elsewhere.test".parse().unwrap());
    assert!(client(foreign, sample.connect()).is_err(), "a page of another site");
    let own = format!("http://{}", sample.addr);
    let mut own_page = url.as_str().into_client_request().unwrap();
    own_page.headers_mut().insert("origin", own.parse().unwrap());
    let (second, _) = client(own_page, sample.connect()).expect("our own page");
    drop(second);

    let told = std::thread::spawn(move || match socket.read() {
        Ok(Message::Close(Some(frame))) => frame.code,
        other => panic!("no good-bye: {other:?}"),
    });
    sample.stop();
    assert_eq!(told.join().unwrap(), CloseCode::Away);
}
