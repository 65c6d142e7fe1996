//! HTTP as far as the samples need it: heads end in a blank line, no request has a body.
//!
//! State: none. Thread class: any thread.

use crate::heads::Heads;
use epoxide::{Connection, Read, RecvBuf};
use std::io;
use std::time::{Duration, Instant};

/// What ends a request head.
pub const END: &[u8; 4] = b"\r\n\r\n";
/// Bytes of a request head; more without a blank line is refused with [`TOO_LARGE`].
pub const MAX_HEAD: usize = 64 * 1024;
/// Bytes of an answer's body that `--body` may ask for.
const MAX_BODY: usize = 1 << 30;
/// How long a head may take from its first byte: a client that stalls in the middle of it is gone by then.
pub const HEAD_DEADLINE: Duration = Duration::from_secs(30);
/// The answer to a head that is too large; the connection closes behind it.
pub const TOO_LARGE: &[u8] =
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

/// A whole response: status line, headers, body.
pub fn response(status: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

/// The answer that the option `--body` asks for. It lives as long as the program.
///
/// # Errors
/// As [`body`].
pub fn answer(text: &str) -> io::Result<&'static [u8]> {
    Ok(response("200 OK", &body(text)?).leak())
}

/// The body that the option `--body` asks for: 'ok', 'bench' or a number of bytes.
///
/// # Errors
/// Anything else.
pub fn body(text: &str) -> io::Result<Vec<u8>> {
    Ok(match text {
        "ok" => b"ok".to_vec(),
        "bench" => b"Hello, World!".to_vec(),
        number => match number.parse::<usize>() {
            Ok(0) => Vec::new(),
            Ok(n) if n <= MAX_BODY => [vec![b'x'; n - 1], vec![b'\n']].concat(),
            _ => {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    format!("--body {number}: 'ok', 'bench' or a number of bytes, at most {MAX_BODY}"),
                ));
            }
        },
    })
}

/// Gives every request the same answer until the client leaves, or stalls in a head for longer than `head_deadline`.
///
/// A drain ends it between requests. The deadline costs nothing while heads come whole: it is armed only when a read
/// ends inside one.
///
/// # Errors
/// Why the connection ended, if not by the client's FIN.
pub async fn answer_all(mut conn: Connection, answer: &'static [u8], head_deadline: Duration) -> io::Result<()> {
    let mut framing = Framing::new(head_deadline);
    loop {
        let Some(data) = framing.read(&mut conn).await? else { return Ok(()) };
        let requests = requests_in(data, &mut framing, &conn);
        if requests == 1 {
            conn.send_all(answer).await?;
            continue;
        }
        if framing.partial > MAX_HEAD {
            // In a box: else an idle connection has the room for it (280 bytes).
            return Box::pin(too_large(conn)).await;
        }
        for _ in 0..requests {
            conn.stage(answer)?;
        }
        conn.flush().await?;
    }
}

/// Apart: `send_all` in one place of the handler is inlined there, in two it is not.
async fn too_large(mut conn: Connection) -> io::Result<()> {
    conn.send_all(TOO_LARGE).await
}

/// How many requests end in `data`. Not inlined into the handler: among a future's variables the parser takes 45
/// instructions more.
#[inline(never)]
fn requests_in(data: RecvBuf, framing: &mut Framing, conn: &Connection) -> usize {
    framing.count(conn, &data)
}

/// For handlers with a loop of their own: which requests are whole, how long an unfinished one may take.
#[derive(Debug)]
pub struct Framing {
    heads: Heads,
    /// Bytes of a head that has begun and not ended.
    partial: usize,
    head_deadline: Duration,
}

impl Default for Framing {
    fn default() -> Self {
        Self::new(HEAD_DEADLINE)
    }
}

impl Framing {
    fn new(head_deadline: Duration) -> Self {
        Self { heads: Heads::default(), partial: 0, head_deadline }
    }

    /// Waits for bytes; a drain ends the wait between requests only.
    pub fn read<'a>(&self, conn: &'a mut Connection) -> Read<'a> {
        if self.partial == 0 { conn.read_idle() } else { go_on(conn) }
    }

    /// How many requests end in `bytes`; `None`: the head is too large.
    pub fn feed(&mut self, conn: &Connection, bytes: &[u8]) -> Option<usize> {
        let requests = self.count(conn, bytes);
        (self.partial <= MAX_HEAD).then_some(requests)
    }

    #[inline]
    fn count(&mut self, conn: &Connection, bytes: &[u8]) -> usize {
        let requests = self.heads.feed(bytes);
        // The common read is whole heads and nothing else.
        if self.partial > 0 || !bytes.ends_with(END) {
            let whole = requests > 0 && self.heads.ended(bytes);
            self.partial = inside_a_head(conn, self.partial, requests, whole, bytes, self.head_deadline);
        }
        requests
    }
}

/// A read began or ended inside a head: keeps the deadline, and returns how many bytes of an unfinished head there are.
#[cold]
fn inside_a_head(
    conn: &Connection,
    before: usize,
    requests: usize,
    whole: bool,
    bytes: &[u8],
    limit: Duration,
) -> usize {
    if whole {
        conn.set_deadline(None, "request head");
        return 0;
    }
    if requests == 0 && before > 0 {
        return before + bytes.len();
    }
    // It began in this read, behind the last head that ended.
    conn.set_deadline(Some(Instant::now() + limit), "request head");
    // Not memmem's rfind: with a second caller in the program parts of the parser are no longer inlined.
    bytes.len() - bytes.windows(END.len()).rposition(|window| window == END).map_or(0, |at| at + END.len())
}

/// Not `read_idle`: a request is in progress, and a drain waits for the rest of it.
#[cold]
fn go_on(conn: &mut Connection) -> Read<'_> {
    conn.read()
}
