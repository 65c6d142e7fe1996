//! A client's side of HTTP/1: counts whole responses in the bytes received, however they are cut.
//!
//! State: the head that is not complete yet, or what is left of a body. Thread class: pure.

use crate::http::{END, MAX_HEAD};
use std::io;

/// How far the responses of one connection have come.
#[derive(Default, Debug)]
pub struct Responses {
    /// A head that was cut by a read.
    partial: Vec<u8>,
    /// Bytes of the current body that are still to come.
    body_left: u64,
    /// Inside a body, with this status.
    status: u16,
    in_body: bool,
    /// The last head and what it said: the next one is most often the same.
    last: (Vec<u8>, Head),
}

#[derive(Clone, Copy, Default, Debug)]
struct Head {
    status: u16,
    length: u64,
}

impl Responses {
    /// Calls `done` with the status of each response that ends in `bytes`.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] for what is no response, has no `Content-Length`, or a head of more than 64 KiB.
    pub fn feed(&mut self, mut bytes: &[u8], mut done: impl FnMut(u16)) -> io::Result<()> {
        loop {
            if self.in_body {
                let taken = self.body_left.min(bytes.len() as u64);
                self.body_left -= taken;
                bytes = &bytes[taken as usize..];
                if self.body_left > 0 {
                    return Ok(());
                }
                self.in_body = false;
                done(self.status);
            }
            if bytes.is_empty() {
                return Ok(());
            }
            let Some((head, used)) = self.head(bytes)? else { return Ok(()) };
            bytes = &bytes[used..];
            (self.status, self.body_left, self.in_body) = (head.status, head.length, true);
        }
    }

    /// The head at the front of what was kept and `bytes`, and how many of `bytes` belong to it.
    fn head(&mut self, bytes: &[u8]) -> io::Result<Option<(Head, usize)>> {
        if self.partial.is_empty() && !self.last.0.is_empty() && bytes.starts_with(&self.last.0) {
            return Ok(Some((self.last.1, self.last.0.len())));
        }
        let kept = self.partial.len();
        self.partial.extend_from_slice(&bytes[..bytes.len().min(MAX_HEAD + END.len() - kept.min(MAX_HEAD))]);
        // The blank line may have begun in what was kept.
        let from = kept.saturating_sub(END.len() - 1);
        let Some(at) = memchr::memmem::find(&self.partial[from..], END) else {
            if self.partial.len() > MAX_HEAD {
                return Err(invalid("a head of more than 64 KiB"));
            }
            return Ok(None);
        };
        let length = from + at + END.len();
        let head = parse(&self.partial[..length])?;
        self.partial.truncate(length);
        self.last = (std::mem::take(&mut self.partial), head);
        Ok(Some((head, length - kept)))
    }
}

fn parse(head: &[u8]) -> io::Result<Head> {
    let text = std::str::from_utf8(head).map_err(|_| invalid("a head that is no text"))?;
    let status = text.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5)).and_then(|digits| digits.parse().ok());
    let status = status.ok_or_else(|| invalid("something that is no HTTP/1 response"))?;
    let length = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
    });
    let length = length.ok_or_else(|| invalid("a response without Content-Length, which is all that is understood"))?;
    Ok(Head { status, length })
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the server sent {what}"))
}

#[cfg(test)]
mod tests {
    use super::Responses;
    use crate::http::response;

    fn statuses(parts: &[&[u8]]) -> Result<Vec<u16>, String> {
        let (mut responses, mut seen) = (Responses::default(), Vec::new());
        for part in parts {
            responses.feed(part, |status| seen.push(status)).map_err(|error| error.to_string())?;
        }
        Ok(seen)
    }

    #[test]
    fn responses_are_counted_however_they_are_cut() {
        let text = [
            response("200 OK", b"ok"),
            response("204 None", b""),
            response("404 No", b"a\r\n\r\nb"),
            response("200 OK", b"ok"),
        ]
        .concat();
        let all = Ok(vec![200, 204, 404, 200]);
        assert_eq!(statuses(&[&text]), all);
        for cut in 0..text.len() {
            assert_eq!(statuses(&[&text[..cut], &text[cut..]]), all, "cut at {cut}");
        }
        let single: Vec<&[u8]> = text.chunks(1).collect();
        assert_eq!(statuses(&single), all);
        assert_eq!(statuses(&[&text[..text.len() - 1]]), Ok(vec![200, 204, 404]), "one byte short is not an answer");
    }

    #[test]
    fn what_is_no_response_is_refused_in_words() {
        for (bytes, word) in [
            (&b"SSH-2.0-x\r\n\r\n"[..], "no HTTP/1"),
            (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "Content-Length"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "Content-Length"),
            (&[b'x'; 70_000], "64 KiB"),
        ] {
            let refused = statuses(&[bytes]).unwrap_err();
            assert!(refused.contains(word), "{refused}");
        }
    }
}
