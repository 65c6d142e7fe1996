//! The sample `send_file`: files, ranges, HEAD, and nothing outside of the root.

mod common;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use common::{Sample, help};

const SEND_FILE: &str = env!("CARGO_BIN_EXE_send_file");

/// A directory that is removed again.
struct Tree(PathBuf);

impl Tree {
    fn new(name: &str) -> Self {
        let base = std::env::temp_dir().join(format!("epoxide-{name}-{}", std::process::id()));
        fs::create_dir_all(base.join("root/sub")).unwrap();
        Self(base)
    }

    fn root(&self) -> PathBuf {
        self.0.join("root")
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

struct Answer {
    status: u16,
    head: String,
    body: Vec<u8>,
}

/// Sends one request and reads exactly one answer.
fn ask(stream: &mut TcpStream, method: &str, path: &str, headers: &str) -> Answer {
    stream.write_all(format!("{method} {path} HTTP/1.1\r\nHost: t\r\n{headers}\r\n").as_bytes()).unwrap();
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap().parse().unwrap();
    let mut body = vec![0; if method == "HEAD" { 0 } else { length }];
    stream.read_exact(&mut body).unwrap();
    Answer { status, head, body }
}

#[test]
fn files_and_ranges_are_served_and_nothing_else() {
    let tree = Tree::new("sample-send-file");
    let content: Vec<u8> = (0..3 << 20).map(|i: usize| (i % 251) as u8).collect();
    fs::write(tree.root().join("big.bin"), &content).unwrap();
    fs::write(tree.root().join("index.html"), "<p>hello").unwrap();
    fs::write(tree.root().join("sub/a b.txt"), "spaced").unwrap();
    fs::write(tree.root().join("empty"), "").unwrap();
    fs::write(tree.0.join("secret"), "outside").unwrap();
    symlink("../secret", tree.root().join("escape")).unwrap();
    symlink("/etc/hostname", tree.root().join("absolute")).unwrap();
    symlink("sub/a b.txt", tree.root().join("inside")).unwrap();
    nix::unistd::mkfifo(&tree.root().join("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();

    let root = tree.root();
    let server = Sample::start(SEND_FILE, &["--root", root.to_str().unwrap()]);
    assert!(server.first_line.contains("try: curl"), "{}", server.first_line);
    // One connection for all of it: every answer is exactly as long as it says.
    let mut stream = server.connect();
    let mut get = |path: &str, headers: &str| ask(&mut stream, "GET", path, headers);
    let whole = get("/big.bin", "");
    assert_eq!((whole.status, whole.body == content), (200, true));
    assert!(whole.head.contains("Accept-Ranges: bytes"));
    for (range, from, to) in [
        ("0-0", 0, 1),
        ("5-1000005", 5, 1_000_006),
        ("3145727-", (3 << 20) - 1, 3 << 20),
        ("-7", (3 << 20) - 7, 3 << 20),
    ] {
        let part = get("/big.bin", &format!("Range: bytes={range}\r\n"));
        assert_eq!((part.status, part.body == content[from..to]), (206, true), "{range}");
        let said = format!("Content-Range: bytes {from}-{}/{}\r\n", to - 1, 3 << 20);
        assert!(part.head.contains(&said), "{}", part.head);
    }
    let beyond = get("/big.bin", "Range: bytes=3145728-\r\n");
    assert_eq!(beyond.status, 416);
    assert!(beyond.head.contains("Content-Range: bytes */3145728"));
    assert_eq!(get("/", "").body, b"<p>hello");
    assert_eq!(get("/sub/a%20b.txt", "").body, b"spaced");
    assert_eq!(get("/inside", "").body, b"spaced");
    assert_eq!((get("/empty", "").status, get("/empty", "").body.len()), (200, 0));
    let outside = [
        "/../secret",
        "/%2e%2e/secret",
        "/sub/../../secret",
        "/escape",
        "/absolute",
        "//etc/hostname",
        "/fifo",
        "/sub",
    ];
    for path in outside.into_iter().chain(["/nothing", "/big.bin/", "/index.html/x"]) {
        let refused = get(path, "");
        assert_eq!(refused.status, 404, "{path}");
        assert!(!refused.body.windows(7).any(|w| w == b"outside"));
    }
    let head = ask(&mut stream, "HEAD", "/big.bin", "Range: bytes=0-9\r\n");
    assert_eq!(head.status, 206);
    assert!(head.head.contains("Content-Length: 10\r\n"));
    assert_eq!(ask(&mut stream, "HEAD", "/nothing", "").status, 404);
    // Still in step.
    assert_eq!(ask(&mut stream, "GET", "/", "").body, b"<p>hello");
    let last = ask(&mut stream, "POST", "/", "");
    assert_eq!(last.status, 405);
    assert!(last.head.contains("Allow: GET, HEAD"));
    assert_eq!(stream.read(&mut [0]).unwrap(), 0, "the connection goes on after a refused head");
    let rest = server.stop();
    assert!(rest.contains("0 connections cut"), "{rest}");
}

#[test]
fn pipelined_requests_are_answered_in_order_and_close_is_kept() {
    let tree = Tree::new("sample-send-file-pipelined");
    fs::write(tree.root().join("a"), "first").unwrap();
    fs::write(tree.root().join("b"), "second").unwrap();
    let root = tree.root();
    let server = Sample::start(SEND_FILE, &["--root", root.to_str().unwrap()]);
    let mut stream = server.connect();
    stream
        .write_all(b"GET /a HTTP/1.1\r\n\r\nGET /b HTTP/1.1\r\nRange: bytes=1-2\r\n\r\nGET /a HTTP/1.1\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut all = String::new();
    stream.read_to_string(&mut all).unwrap();
    let bodies: Vec<_> = all.split("\r\n\r\n").skip(1).map(|part| part.split("HTTP/").next().unwrap()).collect();
    assert_eq!(bodies, ["first", "ec", "first"], "{all}");
    // A head without an end is refused at its limit.
    let mut stream = server.connect();
    stream.write_all(&[b'x'; 20_000]).unwrap();
    let mut all = String::new();
    stream.read_to_string(&mut all).unwrap();
    assert!(all.starts_with("HTTP/1.1 431 "), "{all}");
}

#[test]
fn help_names_every_option_and_a_bad_root_is_named() {
    let help = help(SEND_FILE);
    for word in ["--addr", "--port", "--reactors", "--root", "PLAYGROUND_PORT"] {
        assert!(help.contains(word), "{word} is missing in\n{help}");
    }
    let output =
        std::process::Command::new(SEND_FILE).args(["--root", "/nowhere/at/all", "--port", "0"]).output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("/nowhere/at/all"));
}
