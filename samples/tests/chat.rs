//! The sample `chat`: lines of many clients on many reactors reach all the others, whole.

mod common;

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use common::{Sample, help};

const CHAT: &str = env!("CARGO_BIN_EXE_chat");

struct Guest {
    name: String,
    stream: TcpStream,
    lines: BufReader<TcpStream>,
}

impl Guest {
    fn join(chat: &Sample) -> Self {
        let stream = chat.connect();
        let mut guest = Self { name: String::new(), lines: BufReader::new(stream.try_clone().unwrap()), stream };
        let welcome = guest.line_that("is the welcome", |line| line.starts_with("* you are guest "));
        guest.name = welcome.split(' ').nth(4).unwrap().to_owned();
        guest
    }

    fn say(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).unwrap();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("a line within 30 s");
        line.trim_end().to_owned()
    }

    /// The next line like this, within a minute: announcements go on for ever.
    fn line_that(&mut self, what: &str, is: impl Fn(&str) -> bool) -> String {
        let began = std::time::Instant::now();
        while began.elapsed() < Duration::from_secs(60) {
            let line = self.line();
            if is(&line) {
                return line;
            }
        }
        panic!("no line that {what}");
    }

    /// The next line that somebody said.
    fn heard(&mut self) -> String {
        self.line_that("somebody said", |line| !line.starts_with('*'))
    }
}

#[test]
fn lines_reach_all_the_others_whole_and_in_order() {
    const GUESTS: usize = 8;
    const LINES: usize = 200;
    let chat = Sample::start(CHAT, &["--announce", "1", "--backlog", "4096"]);
    assert!(chat.first_line.contains("try it in two terminals: nc 127.0.0.1"), "{}", chat.first_line);
    assert!(chat.first_line.contains(&format!("curl telnet://{} ", chat.addr)), "{}", chat.first_line);
    let mut guests: Vec<_> = (0..GUESTS).map(|_| Guest::join(&chat)).collect();
    std::thread::scope(|scope| {
        for guest in &guests {
            let mut stream = guest.stream.try_clone().unwrap();
            scope.spawn(move || {
                for i in 0..LINES {
                    // In two pieces, so that lines are put together from parts.
                    stream.write_all(format!("line {i} ").as_bytes()).unwrap();
                    stream.write_all(format!("{}\r\n", "x".repeat(i)).as_bytes()).unwrap();
                }
            });
        }
        for guest in &mut guests {
            scope.spawn(move || {
                let mut next: HashMap<String, usize> = HashMap::new();
                for _ in 0..LINES * (GUESTS - 1) {
                    let heard = guest.heard();
                    let (who, text) = heard.split_once(": ").unwrap();
                    assert_ne!(who, guest.name, "one's own line came back");
                    let i = next.entry(who.to_owned()).or_default();
                    assert_eq!(text, format!("line {i} {}", "x".repeat(*i)).trim_end(), "from {who}");
                    *i += 1;
                }
                assert_eq!(next.len(), GUESTS - 1);
            });
        }
    });
    let gone = guests.pop().unwrap().name;
    guests[0].line_that("says who left", |line| line == format!("* guest {gone} has left"));
    // The plain thread announces.
    guests[0].line_that("announces", |line| line == format!("* {} are here", GUESTS - 1));
    let rest = chat.stop();
    assert!(rest.contains("0 connections cut"), "{rest}");
}

/// As in `chat 2>&1 | head -1`: nobody reads that a guest is let go, and it is all the same.
#[test]
fn a_guest_that_does_not_read_is_let_go_and_a_long_line_too() {
    let mut chat = Sample::start_heard(CHAT, &["--backlog", "16"]);
    drop(chat.stderr());
    let (mut talker, mut listener, deaf) = (Guest::join(&chat), Guest::join(&chat), Guest::join(&chat));
    // What would move the cursor of a terminal does not get that far.
    talker.say("a\rb\x1b[2Jc\td\n");
    assert_eq!(listener.heard(), format!("{}: a\u{FFFD}b\u{FFFD}[2Jc\td", talker.name));
    let left = format!("* guest {} has left", deaf.name);
    let line = format!("{}\n", "y".repeat(4000));
    let mut said = 0;
    // Until the kernel's buffers and the backlog are full; who reads hears everything meanwhile.
    let gone = 'gone: loop {
        assert!(said < 20_000, "never let go");
        for _ in 0..10 {
            talker.say(&line);
            said += 1;
        }
        let mut heard = 0;
        while heard < 10 {
            match listener.line() {
                told if told == left => break 'gone true,
                told => heard += usize::from(!told.starts_with('*')),
            }
        }
    };
    assert!(gone);
    drop(deaf);
    // With and without its end.
    for end in ["", "\n"] {
        let mut rude = Guest::join(&chat);
        rude.say(&("z".repeat(10_000) + end));
        let mut rest = Vec::new();
        rude.stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let ended = std::io::Read::read_to_end(&mut rude.lines, &mut rest);
        assert!(ended.is_ok() || ended.unwrap_err().kind() == std::io::ErrorKind::ConnectionReset);
    }
    drop((talker, listener));
    chat.stop();
}

#[test]
fn help_names_every_option() {
    let help = help(CHAT);
    for word in ["--addr", "--port", "--reactors", "--announce", "--backlog", "PLAYGROUND_PORT", "nc"] {
        assert!(help.contains(word), "{word} is missing in\n{help}");
    }
}
