//! The sample `sse`: events reach every listener whole, from a POST and from stdin; who does not read costs nothing.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use common::{Sample, help};

const SSE: &str = env!("CARGO_BIN_EXE_sse");

struct Listener(BufReader<TcpStream>);

impl Listener {
    fn join(sse: &Sample) -> Self {
        let mut stream = sse.connect();
        stream.write_all(b"GET /events HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut listener = Self(BufReader::new(stream));
        let head = listener.until_blank();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("text/event-stream"), "{head}");
        listener
    }

    fn until_blank(&mut self) -> String {
        let mut text = String::new();
        while !text.ends_with("\r\n\r\n") && !text.ends_with("\n\n") {
            assert!(self.0.read_line(&mut text).expect("a line within 30 s") > 0, "the end after {text:?}");
        }
        text
    }

    /// The next event; comments are none.
    fn event(&mut self) -> String {
        loop {
            let text = self.until_blank();
            if !text.starts_with(':') {
                return text;
            }
        }
    }
}

fn publish(sse: &Sample, text: &str) -> String {
    let mut stream = sse.connect();
    write!(stream, "POST /publish HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{text}", text.len()).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Joined for certain: the answer to a POST says how many it went to.
fn joined(sse: &Sample, listeners: usize) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while !publish(sse, "are you there").contains(&format!("to {listeners} listeners")) {
        assert!(std::time::Instant::now() < deadline, "not joined");
        std::thread::yield_now();
    }
}

/// A line that is not UTF-8 does not end the typing.
#[test]
fn typed_lines_are_published_whatever_they_hold() {
    let (sse, mut typed) = Sample::start_typing(SSE, &[]);
    let mut listener = Listener::join(&sse);
    joined(&sse, 1);
    typed.write_all(b"caf\xe9\nand\x00this\r\n\nlast\n").unwrap();
    let mut events = std::iter::repeat_with(|| listener.event()).filter(|event| event != "data: are you there\n\n");
    for expected in ["data: caf\u{fffd}\n\n", "data: and\0this\n\n", "data: \n\n", "data: last\n\n"] {
        assert_eq!(events.next().unwrap(), expected);
    }
}

#[test]
fn events_reach_every_listener_whole_and_in_order() {
    let sse = Sample::start(SSE, &["--ping", "1"]);
    assert!(sse.first_line.contains("curl -N http://127.0.0.1"), "{}", sse.first_line);
    let mut listeners: Vec<_> = (0..20).map(|_| Listener::join(&sse)).collect();
    let _deaf = Listener::join(&sse);
    joined(&sse, 21);
    for i in 0..50 {
        let answer = publish(&sse, &format!("line {i}\r\nand {}", "y".repeat(i * 100)));
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("to 21 listeners"), "{answer}");
    }
    for listener in &mut listeners {
        let mut events = std::iter::repeat_with(|| listener.event()).filter(|event| event != "data: are you there\n\n");
        for i in 0..50 {
            assert_eq!(events.next().unwrap(), format!("data: line {i}\ndata: and {}\n\n", "y".repeat(i * 100)));
        }
    }
    // A quiet stream is kept alive by comments.
    assert_eq!(listeners[0].until_blank(), ":\n\n");
    assert!(publish(&sse, &"z".repeat(70_000)).starts_with("HTTP/1.1 413"));
    drop(listeners);
    let rest = sse.stop();
    assert!(rest.contains("refused_closed 0\n") && rest.contains("members 0\n"), "{rest}");
}

/// Bodies that are not read, or whose length somebody else could see differently: what is in them is never a request.
#[test]
fn a_request_hidden_in_a_body_is_not_served() {
    let sse = Sample::start(SSE, &[]);
    let hidden = "POST /publish HTTP/1.1\r\nContent-Length: 1\r\n\r\nx";
    for (start, status) in [
        ("POST /nothing HTTP/1.1\r\nContent-Length: 49\r\n\r\n", "404"),
        ("POST /publish HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400"),
        ("POST /publish HTTP/1.1\r\nContent-Length: 0\r\nContent-Length: 49\r\n\r\n", "400"),
        ("POST /publish HTTP/1.1\r\nContent-Length : 49\r\n\r\n", "400"),
        ("POST /publish HTTP/1.1\r\nContent-Length: +49\r\n\r\n", "400"),
        ("GET /nothing HTTP/1.1\r\nX: y\n Content-Length: 49\r\n\r\n", "400"),
    ] {
        let mut stream = sse.connect();
        stream.write_all(format!("{start}{hidden}").as_bytes()).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{start:?}: {answer}");
        assert_eq!(answer.matches("HTTP/1.1").count(), 1, "{start:?}: {answer}");
    }
    // The control: without a body the connection goes on, and what follows is a request.
    let mut stream = sse.connect();
    stream.write_all(format!("GET /nothing HTTP/1.1\r\n\r\n{hidden}").as_bytes()).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("404 ") && answer.ends_with("to 0 listeners\n"), "{answer}");
}

#[test]
fn help_names_every_option() {
    let help = help(SSE);
    for word in ["--addr", "--port", "--reactors", "--ping", "--backlog", "/publish"] {
        assert!(help.contains(word), "{word} is missing in\n{help}");
    }
}
