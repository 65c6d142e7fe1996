//! A server that waits before it answers: GET /25 is answered after 25 ms with the body "25ms".
//!
//! The wait is a timer of the reactor that serves the connection; a thousand clients that wait cost no CPU.

use bytes::Buf;
use clap::Parser;
use epoxide::{Connection, RecvBuf, time};
use epoxide_samples::cli::ServerArgs;
use epoxide_samples::{http, server};
use std::io;
use std::time::{Duration, Instant};

#[derive(Parser, Debug)]
#[command(about = "Answers GET /25 after 25 milliseconds; at most a minute.")]
struct Args {
    #[command(flatten)]
    server: ServerArgs,
}

/// The longest wait, in milliseconds.
const LONGEST: u64 = 60_000;

fn main() -> io::Result<()> {
    server::run("timer", &Args::parse().server, "/25", serve)
}

async fn serve(mut conn: Connection) -> io::Result<()> {
    while let Some(mut data) = conn.read_idle().await? {
        while !data.is_empty() {
            let Some(length) = whole_head(&mut conn, &mut data).await? else { return Ok(()) };
            let answer = match wanted(&data[..length]) {
                Some(ms) => {
                    time::sleep(Duration::from_millis(ms)).await;
                    http::response("200 OK", format!("{ms}ms").as_bytes())
                }
                None => http::response("404 Not Found", b"ask for a number of milliseconds: GET /25"),
            };
            data.advance(length);
            conn.send_all(&answer).await?;
        }
    }
    Ok(())
}

/// The length of the head at the front, once it is there; `None` when the client left, or was too verbose.
async fn whole_head(conn: &mut Connection, data: &mut RecvBuf) -> io::Result<Option<usize>> {
    let mut waits = false;
    loop {
        if let Some(at) = memchr::memmem::find(data, http::END) {
            if waits {
                conn.set_deadline(None, "request head");
            }
            return Ok(Some(at + http::END.len()));
        }
        if data.len() > http::MAX_HEAD {
            conn.send_all(http::TOO_LARGE).await?;
            return Ok(None);
        }
        if !waits {
            conn.set_deadline(Some(Instant::now() + http::HEAD_DEADLINE), "request head");
            waits = true;
        }
        if conn.read_more(data).await? == 0 {
            return Ok(None);
        }
    }
}

/// The milliseconds in `GET /25 HTTP/1.1`, clamped.
fn wanted(head: &[u8]) -> Option<u64> {
    let path = head.split(|byte| *byte == b' ').nth(1)?;
    let number = std::str::from_utf8(path.strip_prefix(b"/")?).ok()?;
    let digits = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    // Too many digits for a number are more than the longest wait, too.
    digits.then(|| number.parse().unwrap_or(LONGEST).min(LONGEST))
}

#[cfg(test)]
mod tests {
    use super::{LONGEST, wanted};

    #[test]
    fn the_wait_is_the_number_in_the_path() {
        let of = |path: &str| wanted(format!("GET {path} HTTP/1.1\r\n\r\n").as_bytes());
        assert_eq!((of("/25"), of("/0"), of("/60001")), (Some(25), Some(0), Some(LONGEST)));
        assert_eq!(of("/99999999999999999999999"), Some(LONGEST));
        for path in ["/", "/x", "/-1", "/+1", "25", "/2 5"] {
            assert!(of(path).is_none() || path == "/2 5", "{path}");
        }
        assert_eq!(wanted(b"GET"), None);
    }
}
