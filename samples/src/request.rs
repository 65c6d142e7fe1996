//! As much of HTTP/1.1 as serving files takes: the head of a GET or HEAD, its path, its range.
//!
//! State: none. Thread class: pure. Sources: RFC 9112 (heads), RFC 9110, section 14 (ranges), RFC 3986, section 2.1.

use std::ops::Range;

/// What a request asks for.
#[derive(Debug, PartialEq, Eq)]
pub struct Request {
    /// HEAD: the answer has no body.
    pub head_only: bool,
    /// The path, decoded, without the leading slashes.
    pub path: Vec<u8>,
    /// The value of `Range`, if there is one.
    pub range: Option<String>,
    /// The connection goes on after the answer.
    pub keep_alive: bool,
}

/// A request that is refused: the status to answer with. The connection ends after it.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused(pub u16);

/// The length of the head at the front of `bytes`, its blank line included.
pub fn head_length(bytes: &[u8]) -> Option<usize> {
    memchr::memmem::find(bytes, b"\r\n\r\n").map(|at| at + 4)
}

impl Request {
    /// Takes a whole head apart.
    ///
    /// # Errors
    /// 400 for what is no HTTP/1 head or brings a body, 405 for another method.
    pub fn parse(head: &[u8]) -> Result<Self, Refused> {
        let head = std::str::from_utf8(head).map_err(|_| Refused(400))?;
        // Whatever another reader of the same bytes could take for a line's end (RFC 9112, 2.2) or make nothing of.
        if head.replace("\r\n", "").bytes().any(|b| b.is_ascii_control() && b != b'\t') {
            return Err(Refused(400));
        }
        let mut lines = head.split("\r\n");
        let mut words = lines.next().unwrap_or_default().split(' ');
        let (Some(method), Some(target), Some(version), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(Refused(400));
        };
        let mut keep_alive = match version {
            "HTTP/1.1" => true,
            "HTTP/1.0" => false,
            _ => return Err(Refused(400)),
        };
        let mut range = None;
        for line in lines.take_while(|line| !line.is_empty()) {
            let (name, value) = line.split_once(':').ok_or(Refused(400))?;
            // A space before the colon, or a line that goes on (RFC 9112, 5.1 and 5.2), hides a length from somebody.
            if name.is_empty() || name.contains([' ', '\t']) {
                return Err(Refused(400));
            }
            let value = value.trim();
            match name.to_ascii_lowercase().as_str() {
                // A body that is not read would be taken for the next request.
                "transfer-encoding" => return Err(Refused(400)),
                "content-length" if value != "0" => return Err(Refused(400)),
                "connection" if value.split(',').any(|word| word.trim().eq_ignore_ascii_case("close")) => {
                    keep_alive = false;
                }
                "range" => range = Some(value.to_owned()),
                _ => {}
            }
        }
        let head_only = match method {
            "GET" => false,
            "HEAD" => true,
            _ => return Err(Refused(405)),
        };
        let path = target.split(['?', '#']).next().unwrap_or_default();
        let path = decode(path.strip_prefix('/').ok_or(Refused(400))?.trim_start_matches('/'))?;
        Ok(Self { head_only, path, range, keep_alive })
    }
}

/// Percent-decoding. A zero byte is in no path.
fn decode(path: &str) -> Result<Vec<u8>, Refused> {
    let mut decoded = Vec::with_capacity(path.len());
    let mut bytes = path.bytes();
    while let Some(byte) = bytes.next() {
        let byte = match byte {
            b'%' => {
                let mut digit = || bytes.next().and_then(|b| char::from(b).to_digit(16)).ok_or(Refused(400));
                (digit()? * 16 + digit()?) as u8
            }
            byte => byte,
        };
        if byte == 0 {
            return Err(Refused(400));
        }
        decoded.push(byte);
    }
    Ok(decoded)
}

/// What a `Range` header means for a file of `size` bytes. `None`: the whole file (no header, one that is not understood,
/// or several ranges, all of which a server may ignore).
///
/// # Errors
/// 416 when the range has no byte of the file in it.
pub fn range_of(header: Option<&str>, size: u64) -> Result<Option<Range<u64>>, Refused> {
    let Some((first, last)) = header.and_then(|h| h.strip_prefix("bytes=")).and_then(|spec| spec.split_once('-'))
    else {
        return Ok(None);
    };
    let number = |text: &str| text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse::<u64>().ok()).flatten();
    let range = match (first, last) {
        ("", last) => match number(last) {
            // The last so many bytes.
            Some(count) if count > 0 => size.saturating_sub(count)..size,
            Some(_) => return Err(Refused(416)),
            None => return Ok(None),
        },
        (first, "") => match number(first) {
            Some(first) => first..size,
            None => return Ok(None),
        },
        (first, last) => match (number(first), number(last)) {
            (Some(first), Some(last)) if first <= last => first..size.min(last.saturating_add(1)),
            _ => return Ok(None),
        },
    };
    if range.is_empty() { Err(Refused(416)) } else { Ok(Some(range)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(head: &str) -> Result<Request, Refused> {
        Request::parse(head.as_bytes())
    }

    #[test]
    fn heads_are_taken_apart_or_refused() {
        let request = parse("GET /a%20b//c?q HTTP/1.1\r\nHost: x\r\nRANGE: bytes=1-2\r\n\r\n").unwrap();
        assert_eq!(request.path, b"a b//c");
        assert_eq!((request.head_only, request.keep_alive, request.range.as_deref()), (false, true, Some("bytes=1-2")));
        let request = parse("HEAD / HTTP/1.1\r\nConnection: Close\r\n\r\n").unwrap();
        assert_eq!((request.head_only, request.keep_alive, request.path), (true, false, Vec::new()));
        assert!(!parse("GET / HTTP/1.0\r\n\r\n").unwrap().keep_alive);
        assert!(!parse("GET / HTTP/1.1\r\nConnection: keep-alive, close\r\n\r\n").unwrap().keep_alive);
        for (head, status) in [
            ("POST / HTTP/1.1\r\n\r\n", 405),
            ("GET / HTTP/1.1\r\nContent-Length: 1\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
            ("GET / HTTP/2.0\r\n\r\n", 400),
            ("GET a HTTP/1.1\r\n\r\n", 400),
            ("GET /%0 HTTP/1.1\r\n\r\n", 400),
            ("GET /%00 HTTP/1.1\r\n\r\n", 400),
            ("GET /%+1 HTTP/1.1\r\n\r\n", 400),
            ("GET /a b HTTP/1.1\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
            // A length that somebody else would see.
            ("GET / HTTP/1.1\r\nContent-Length : 5\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\n Content-Length: 5\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nX: y\r\n\tTransfer-Encoding: chunked\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nX: y\nContent-Length: 5\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nX: y\rContent-Length: 5\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nX: \0\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nContent-Length: 0\r\nContent-Length: 5\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\n: 5\r\n\r\n", 400),
            ("\r\n\r\n", 400),
        ] {
            assert_eq!(parse(head), Err(Refused(status)), "{head:?}");
        }
        assert_eq!(Request::parse(b"GET /\xff HTTP/1.1\r\n\r\n"), Err(Refused(400)));
    }

    #[test]
    fn ranges_are_cut_to_the_file_or_refused() {
        let of = |header| range_of(Some(header), 10);
        for (header, range) in [
            ("bytes=0-0", 0..1),
            ("bytes=2-5", 2..6),
            ("bytes=9-", 9..10),
            ("bytes=3-99999999999999999999", 0..0),
            ("bytes=3-18446744073709551615", 3..10),
            ("bytes=-3", 7..10),
            ("bytes=-30", 0..10),
        ] {
            let expected = (!range.is_empty()).then_some(range);
            assert_eq!(of(header), Ok(expected), "{header}");
        }
        for header in ["bytes=10-", "bytes=10-12", "bytes=-0"] {
            assert_eq!(of(header), Err(Refused(416)), "{header}");
        }
        for header in ["bytes=5-2", "bytes=0-1,3-4", "bytes=a-b", "bytes=-", "lines=1-2", "bytes=+1-2", ""] {
            assert_eq!(of(header), Ok(None), "{header}");
        }
        assert_eq!(range_of(None, 10), Ok(None));
        assert_eq!(range_of(Some("bytes=0-"), 0), Err(Refused(416)));
    }
}
