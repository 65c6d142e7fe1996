//! The sample `ws_hub` with real WebSocket clients of the test's own making (RFC 6455, 4 and 5): nothing here comes from
//! the crate that the sample speaks the protocol with.

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use common::{Sample, help};
use nix::libc;
use nix::sys::socket::{setsockopt, sockopt};

const WS_HUB: &str = env!("CARGO_BIN_EXE_ws_hub");
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

/// The example of RFC 6455, 1.3.
const HANDSHAKE: &str = "GET /ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n";
const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

/// A frame as a client sends it.
fn masked(opcode: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x80 | opcode];
    match payload.len() {
        n @ 0..126 => frame.push(0x80 | n as u8),
        n @ 126..65_536 => {
            frame.push(0x80 | 126);
            frame.extend_from_slice(&(n as u16).to_be_bytes());
        }
        n => {
            frame.push(0x80 | 127);
            frame.extend_from_slice(&(n as u64).to_be_bytes());
        }
    }
    let mask = [7, 77, 177, 250];
    frame.extend_from_slice(&mask);
    frame.extend(payload.iter().enumerate().map(|(i, byte)| byte ^ mask[i % 4]));
    frame
}

struct Client {
    stream: TcpStream,
    bytes: Vec<u8>,
}

impl Client {
    fn connect(addr: SocketAddr) -> Self {
        let mut stream = TcpStream::connect(addr).expect("the sample accepts");
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.write_all(format!("{HANDSHAKE}\r\n").as_bytes()).unwrap();
        let mut client = Self { stream, bytes: Vec::new() };
        let head = client.head();
        assert!(head.starts_with("HTTP/1.1 101 ") && head.contains(ACCEPT), "{head}");
        client
    }

    fn more(&mut self) -> usize {
        let mut space = [0; 65_536];
        let n = self.stream.read(&mut space).expect("bytes within 60 s");
        self.bytes.extend_from_slice(&space[..n]);
        n
    }

    fn head(&mut self) -> String {
        loop {
            if let Some(at) = self.bytes.windows(4).position(|four| four == b"\r\n\r\n") {
                return String::from_utf8(self.bytes.drain(..at + 4).collect()).unwrap();
            }
            assert!(self.more() > 0, "no whole head");
        }
    }

    fn send(&mut self, opcode: u8, payload: &[u8]) {
        self.stream.write_all(&masked(opcode, payload)).unwrap();
    }

    /// The next frame; `None` at the end.
    fn frame(&mut self) -> Option<(u8, Vec<u8>)> {
        loop {
            if let Some((head, len)) = header(&self.bytes)
                && self.bytes.len() >= head + len
            {
                let frame: Vec<u8> = self.bytes.drain(..head + len).collect();
                return Some((frame[0] & 15, frame[head..].to_vec()));
            }
            if self.more() == 0 {
                assert!(self.bytes.is_empty(), "a frame is cut: {} bytes of it", self.bytes.len());
                return None;
            }
        }
    }

    /// The next message of a publisher, past pings.
    fn data(&mut self) -> (u8, Vec<u8>) {
        loop {
            let (opcode, payload) = self.frame().expect("a frame");
            if opcode != PING {
                return (opcode, payload);
            }
            self.send(PONG, &payload);
        }
    }
}

/// How long the header and the payload of the first frame are. A server's frames are whole messages, and not masked.
fn header(bytes: &[u8]) -> Option<(usize, usize)> {
    let (first, second) = (*bytes.first()?, *bytes.get(1)?);
    assert_eq!(first & 0xF0, 0x80, "a fragment, or reserved bits");
    assert_eq!(second & 0x80, 0, "a server's frame is masked");
    Some(match second {
        126 => (4, u16::from_be_bytes(bytes.get(2..4)?.try_into().unwrap()) as usize),
        127 => (10, u64::from_be_bytes(bytes.get(2..10)?.try_into().unwrap()) as usize),
        n => (2, n as usize),
    })
}

fn payload(publisher: usize, seq: usize) -> Vec<u8> {
    let mut payload = vec![publisher as u8];
    payload.extend_from_slice(&(seq as u32).to_be_bytes());
    payload.extend((5..8192).map(|j| (publisher * 41 + seq * 7 + j * 3) as u8));
    payload
}

/// 1024 members, 8 KiB messages from four of them: every byte at every member, in one order.
#[test]
fn a_thousand_members_get_every_byte_in_one_order() {
    const MEMBERS: usize = 1024;
    const PUBLISHERS: usize = 4;
    const EACH: usize = 6;
    const THREADS: usize = 8;
    let hub = Sample::start(WS_HUB, &["--sequenced"]);
    assert!(hub.first_line.contains(&format!("ws://{}/ws", hub.addr)), "{}", hub.first_line);
    let joined = Barrier::new(THREADS);
    let logs: Vec<Vec<(usize, usize)>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (addr, joined) = (hub.addr, &joined);
                scope.spawn(move || {
                    let mut clients: Vec<_> = (0..MEMBERS / THREADS).map(|_| Client::connect(addr)).collect();
                    // Joined for certain: a pong comes from a member.
                    for client in &mut clients {
                        client.send(PING, b"in?");
                        assert_eq!(client.frame().unwrap(), (PONG, b"in?".to_vec()));
                    }
                    joined.wait();
                    let mut logs = vec![Vec::new(); clients.len()];
                    for seq in 0..EACH {
                        if thread < PUBLISHERS {
                            clients[0].send(BINARY, &payload(thread, seq));
                        }
                        // One of each publisher before the next: nobody falls behind further than that.
                        for (client, log) in clients.iter_mut().zip(&mut logs) {
                            for _ in 0..PUBLISHERS {
                                let (opcode, got) = client.data();
                                let (publisher, seq) =
                                    (got[0] as usize, u32::from_be_bytes(got[1..5].try_into().unwrap()) as usize);
                                assert!(opcode == BINARY && got == payload(publisher, seq), "a corrupt message");
                                log.push((publisher, seq));
                            }
                        }
                    }
                    for client in &mut clients {
                        client.send(CLOSE, &1000_u16.to_be_bytes());
                        assert_eq!(client.frame().unwrap(), (CLOSE, 1000_u16.to_be_bytes().to_vec()));
                        assert_eq!(client.frame(), None, "something comes behind the close frame");
                    }
                    logs
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(logs.len(), MEMBERS);
    for log in &logs {
        assert!(*log == logs[0], "two members saw two orders");
        for publisher in 0..PUBLISHERS {
            let seqs: Vec<_> = log.iter().filter(|(p, _)| *p == publisher).map(|(_, seq)| *seq).collect();
            assert_eq!(seqs, (0..EACH).collect::<Vec<_>>());
        }
    }
    let rest = hub.stop();
    assert!(rest.contains("joined 1024\n") && rest.contains("members 0\n") && rest.contains("bytes 0\n"), "{rest}");
}

#[test]
fn the_protocol_is_kept_and_what_breaks_it_is_told_so() {
    let hub = Sample::start(WS_HUB, &["--ping", "1", "--origin", "https://good.example"]);
    let mut member = Client::connect(hub.addr);
    // A message in fragments, a ping between them.
    let mut first = masked(TEXT, "hé".as_bytes());
    first[0] &= 0x7F;
    member.stream.write_all(&first).unwrap();
    member.send(PING, b"between");
    member.send(0, b"llo");
    assert_eq!(member.data(), (PONG, b"between".to_vec()));
    assert_eq!(member.data(), (TEXT, "héllo".as_bytes().to_vec()));
    // Pings of the server: this one answers, and stays.
    for _ in 0..3 {
        let (opcode, payload) = member.frame().unwrap();
        assert_eq!(opcode, PING);
        member.send(PONG, &payload);
    }
    // It answers from now on, until Ctrl-C says 1001.
    let waiting = std::thread::spawn(move || {
        loop {
            match member.frame() {
                Some((CLOSE, code)) => return (code, member.frame()),
                Some((PING, payload)) => member.send(PONG, &payload),
                other => panic!("{other:?}"),
            }
        }
    });
    // Each breaks the protocol in its own way.
    let unmasked = vec![0x81, 1, b'x'];
    let huge = [&[0x82, 0x80 | 127][..], &(2_u64 << 20).to_be_bytes(), &[1, 2, 3, 4], &[0; 100]].concat();
    let not_utf8 = masked(TEXT, &[0xFF, 0xFE]);
    for (bytes, code) in [(unmasked, 1002_u16), (huge, 1009), (not_utf8, 1007)] {
        let mut rude = Client::connect(hub.addr);
        rude.stream.write_all(&bytes).unwrap();
        let (opcode, payload) = rude.data();
        assert_eq!((opcode, &payload[..2]), (CLOSE, &code.to_be_bytes()[..]));
        rude.stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(rude.frame(), None);
    }
    // Who never answers a ping is let go.
    let mut silent = Client::connect(hub.addr);
    let mut pings = 0;
    while let Some((opcode, _)) = silent.frame() {
        pings += usize::from(opcode == PING);
    }
    assert_eq!(pings, 2);
    let refused = |request: &str| {
        let mut stream = hub.connect();
        stream.write_all(request.as_bytes()).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let other = refused(&format!("{HANDSHAKE}Origin: https://evil.example\r\n\r\n"));
    assert!(other.starts_with("HTTP/1.1 403 "), "{other}");
    let path = refused(&format!("{}\r\n", HANDSHAKE.replace("/ws", "/elsewhere")));
    assert!(path.starts_with("HTTP/1.1 404 "), "{path}");
    let plain = refused("GET /ws HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(plain.starts_with("HTTP/1.1 400 "), "{plain}");
    let good = refused(&format!("{HANDSHAKE}Origin: https://good.example\r\n\r\n"));
    assert!(good.starts_with("HTTP/1.1 101 "), "{good}");
    hub.stop();
    assert_eq!(waiting.join().unwrap(), (1001_u16.to_be_bytes().to_vec(), None));
}

fn reset(stream: TcpStream) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    setsockopt(&stream.as_fd(), sockopt::Linger, &linger).unwrap();
    drop(stream);
}

/// 32 threads connect, send a part of a handshake or all of it and a part of a frame, and reset, for six seconds.
#[test]
fn resets_in_mid_upgrade_leave_nothing_behind() {
    let hub = Sample::start(WS_HUB, &[]);
    let descriptors = || std::fs::read_dir(format!("/proc/{}/fd", hub.pid())).unwrap().count();
    drop(Client::connect(hub.addr));
    let settled = |limit: usize| {
        let deadline = Instant::now() + Duration::from_secs(30);
        while descriptors() > limit {
            let names = || {
                let all = std::fs::read_dir(format!("/proc/{}/fd", hub.pid())).unwrap();
                all.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok()).collect::<Vec<_>>()
            };
            assert!(Instant::now() < deadline, "{limit} descriptors before, now {:?}", names());
            // sleep: another process has no signal for this.
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    // What a quiet server has: it has started whole, and the first client is gone, once the number stands still.
    let (mut before, mut still) = (descriptors(), 0);
    while still < 20 {
        // sleep: as above.
        std::thread::sleep(Duration::from_millis(10));
        let now = descriptors();
        still = if now == before { still + 1 } else { 0 };
        before = now;
    }
    let until = Instant::now() + Duration::from_secs(6);
    let script = [format!("{HANDSHAKE}\r\n").into_bytes(), masked(BINARY, &[7; 500])].concat();
    let handshake = HANDSHAKE.len() + 2;
    let (mut connections, mut upgraded) = (0, 0);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..32_usize)
            .map(|worker| {
                let (script, addr) = (&script, hub.addr);
                scope.spawn(move || {
                    let (mut connections, mut upgraded, mut seed) = (0, 0, worker as u64 + 1);
                    while Instant::now() < until {
                        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        let cut = (seed >> 33) as usize % (script.len() + 1);
                        let mut stream = TcpStream::connect(addr).unwrap();
                        connections += 1;
                        // The other side may have ended already.
                        let _ = stream.write_all(&script[..cut]);
                        if cut >= handshake && seed & 0x1_0000 == 0 {
                            stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
                            upgraded += usize::from(stream.read(&mut [0; 100]).is_ok_and(|n| n > 0));
                        }
                        reset(stream);
                    }
                    (connections, upgraded)
                })
            })
            .collect();
        for worker in workers {
            let (c, u) = worker.join().unwrap();
            connections += c;
            upgraded += u;
        }
    });
    eprintln!("{connections} connections, {upgraded} of them seen to be upgraded");
    assert!(connections > 500 && upgraded > 50, "vacuity: {connections} connections, {upgraded} upgraded");
    settled(before);
    // A fresh client is served.
    let mut fresh = Client::connect(hub.addr);
    fresh.send(TEXT, b"hello");
    assert_eq!(fresh.data(), (TEXT, b"hello".to_vec()));
    fresh.send(CLOSE, &1000_u16.to_be_bytes());
    while fresh.frame().is_some() {}
    drop(fresh);
    settled(before);
    let rest = hub.stop();
    let number = |name: &str| -> u64 {
        let line =
            rest.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("no {name} in {rest}"));
        line.trim().parse().unwrap()
    };
    assert_eq!(number("accepted "), number("closed "));
    assert_eq!(number("entered "), number("left "));
    assert!(number("entered ") <= number("accepted ") && number("members ") == 0);
}

/// A buffer full of pings, many times over: each is answered, and the next message is heard.
#[test]
fn a_flood_of_pings_is_answered() {
    const PINGS: usize = 16 * 1024;
    let hub = Sample::start(WS_HUB, &[]);
    let mut member = Client::connect(hub.addr);
    let flood = masked(PING, b"").repeat(PINGS);
    let mut sender = member.stream.try_clone().unwrap();
    let sending = std::thread::spawn(move || sender.write_all(&flood).unwrap());
    for i in 0..PINGS {
        assert_eq!(member.frame(), Some((PONG, Vec::new())), "after {i} pongs");
    }
    sending.join().unwrap();
    member.send(TEXT, b"still here");
    assert_eq!(member.data(), (TEXT, b"still here".to_vec()));
}

/// The page that the start line sends a browser to, and its whole; a reset would cut it.
#[test]
fn a_browser_gets_a_page_that_joins() {
    let hub = Sample::start(WS_HUB, &[]);
    assert!(hub.first_line.contains(&format!("open http://{}/ in", hub.addr)), "{}", hub.first_line);
    let mut browser = hub.connect();
    browser.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nAccept: text/html\r\n\r\n").unwrap();
    let mut page = String::new();
    browser.read_to_string(&mut page).unwrap();
    let (head, body) = page.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("Content-Type: text/html"), "{head}");
    assert!(head.contains(&format!("Content-Length: {}", body.len())) && body.contains("new WebSocket("), "{page}");
    let rest = hub.stop();
    assert!(rest.contains("entered 1\nleft 1\n"), "{rest}");
}

#[test]
fn help_names_every_option() {
    let help = help(WS_HUB);
    for word in ["--addr", "--port", "--reactors", "--origin", "--ping", "--backlog", "--sequenced"] {
        assert!(help.contains(word), "{word} is missing in\n{help}");
    }
}
