//! Job: a blocking HTTP/1.1 client that counts complete responses in one accumulating buffer, so
//! that a response cut short, or one too many, is never taken for an answer.
//! State owned: a peer and the bytes it has received. Thread class: any thread but a reactor's.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::peer::{Ending, Peer};

/// A request with no body.
pub(crate) const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: test\r\n\r\n";

/// One complete response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// The body, of exactly the announced length.
    pub body: Vec<u8>,
}

/// A client connection and what it has received and not yet handed out.
#[derive(Debug)]
pub struct Http {
    peer: Peer,
    received: Vec<u8>,
}

impl Http {
    /// A request line and headers with no body.
    pub const GET: &'static [u8] = GET;

    /// Connects.
    pub fn connect(addr: SocketAddr) -> Self {
        Self::over(Peer::connect(addr))
    }

    /// Speaks over a peer made by the test.
    pub fn over(peer: Peer) -> Self {
        Self { peer, received: Vec::new() }
    }

    /// The peer below, to misbehave with.
    pub fn peer(&mut self) -> &mut Peer {
        &mut self.peer
    }

    /// Gives the peer back.
    pub fn into_peer(self) -> Peer {
        self.peer
    }

    /// Sends raw bytes.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.peer.send(bytes)
    }

    /// One request and its response, within 8 s.
    pub fn get(&mut self) -> Result<Response, Ending> {
        if self.send(GET).is_err() {
            return Err(Ending::Reset);
        }
        self.response(Duration::from_secs(8))
    }

    /// The next complete response.
    pub fn response(&mut self, within: Duration) -> Result<Response, Ending> {
        let deadline = Instant::now() + within;
        loop {
            if let Some((response, used)) = parse(&self.received) {
                self.received.drain(..used);
                return Ok(response);
            }
            self.fill(deadline)?;
        }
    }

    /// Exactly `count` responses, or the ones that came and how it ended.
    pub fn responses(&mut self, count: usize, within: Duration) -> Result<Vec<Response>, (Vec<Response>, Ending)> {
        let deadline = Instant::now() + within;
        let mut responses = Vec::new();
        while responses.len() < count {
            match self.response(deadline.saturating_duration_since(Instant::now())) {
                Ok(response) => responses.push(response),
                Err(ending) => return Err((responses, ending)),
            }
        }
        Ok(responses)
    }

    /// Every complete response until the connection ends or falls silent for `quiet`; what is left
    /// over of an incomplete one comes third.
    pub fn drain(&mut self, quiet: Duration) -> (Vec<Response>, Ending, usize) {
        let mut responses = Vec::new();
        loop {
            match self.response(quiet) {
                Ok(response) => responses.push(response),
                Err(ending) => return (responses, ending, self.received.len()),
            }
        }
    }

    fn fill(&mut self, deadline: Instant) -> Result<(), Ending> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Ending::Timeout);
        }
        let mut chunk = vec![0; 64 * 1024];
        match self.peer.read(&mut chunk, left)? {
            0 => Err(Ending::Eof),
            n => {
                self.received.extend_from_slice(&chunk[..n]);
                Ok(())
            }
        }
    }
}

/// The response at the front of `bytes` and its length, once it is complete.
fn parse(bytes: &[u8]) -> Option<(Response, usize)> {
    let head_len = crate::handlers::find_head_end(bytes)?;
    let head = std::str::from_utf8(&bytes[..head_len]).ok()?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    })?;
    let body = bytes.get(head_len..head_len + length)?.to_vec();
    Some((Response { status, body }, head_len + length))
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn a_response_counts_only_when_complete() {
        let whole = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP";
        for cut in 0..whole.len() - 4 {
            assert!(parse(&whole[..cut]).is_none(), "complete at {cut} bytes");
        }
        let (response, used) = parse(whole).unwrap();
        assert_eq!((response.status, &response.body[..], used), (200, &b"ok"[..], whole.len() - 4));
    }
}
