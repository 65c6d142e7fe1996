//! A WebSocket (RFC 6455) without IO: tungstenite's protocol over bytes in memory.
//!
//! Job: what was received goes in, messages come out, and what the protocol has to answer (the handshake, pongs, the close
//! frame) is taken out to be sent. State: one connection's. Thread class: any thread, one at a time.

use std::io::{self, ErrorKind, Read, Write};
use tungstenite::handshake::server::{Callback, ErrorResponse, Request, Response, ServerHandshake};
use tungstenite::handshake::{HandshakeError, MidHandshake};
use tungstenite::http::StatusCode;
use tungstenite::protocol::WebSocketConfig;
use tungstenite::protocol::frame::coding::{Data, OpCode};
use tungstenite::protocol::frame::{CloseFrame, Frame, coding::CloseCode};
use tungstenite::{Error, Message, WebSocket, accept_hdr_with_config};

/// Bytes of a frame, and of a message.
pub const MAX_FRAME: usize = 1024 * 1024;

/// What came in and was not looked at, what is to go out.
#[derive(Default, Debug)]
struct Memory {
    input: Vec<u8>,
    used: usize,
    output: Vec<u8>,
}

impl Read for Memory {
    fn read(&mut self, space: &mut [u8]) -> io::Result<usize> {
        let n = space.len().min(self.input.len() - self.used);
        if n == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        space[..n].copy_from_slice(&self.input[self.used..self.used + n]);
        self.used += n;
        if self.used == self.input.len() {
            self.input.clear();
            self.used = 0;
        }
        Ok(n)
    }
}

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.output.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Which pages may connect: a browser says in `Origin` which page it runs for.
#[derive(Clone, Debug)]
pub struct CheckOrigin {
    /// None: any. Programs that are no browsers send no origin, and pass.
    pub allowed: Option<String>,
    /// The only path that is served.
    pub path: &'static str,
}

impl Callback for CheckOrigin {
    fn on_request(self, request: &Request, response: Response) -> Result<Response, ErrorResponse> {
        let refusal = |status: StatusCode, why: &str| {
            let mut response = ErrorResponse::new(Some(format!("{why}\n")));
            *response.status_mut() = status;
            response
        };
        if request.uri().path() != self.path {
            return Err(refusal(StatusCode::NOT_FOUND, "no such path"));
        }
        match (request.headers().get("Origin"), &self.allowed) {
            (Some(origin), Some(allowed)) if origin.as_bytes() != allowed.as_bytes() => {
                Err(refusal(StatusCode::FORBIDDEN, "this origin may not connect"))
            }
            _ => Ok(response),
        }
    }
}

#[allow(clippy::large_enum_variant, reason = "one for each connection, and Open is the one that lasts")]
enum State {
    Shaking(Option<MidHandshake<ServerHandshake<Memory, CheckOrigin>>>),
    Open(WebSocket<Memory>),
}

/// A server's side of one connection.
pub struct Session {
    state: State,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("open", &matches!(self.state, State::Open(_))).finish()
    }
}

/// What came of received bytes.
#[derive(Debug)]
pub enum Event {
    /// Nothing yet: more bytes are needed.
    More,
    /// The handshake is done.
    Open,
    /// A text or a binary message.
    Message(Message),
    /// A pong: the peer lives.
    Pong,
    /// The peer says good-bye, or breaks the protocol: what is to go out is the last of it.
    End,
}

impl Session {
    /// Before the handshake.
    pub fn new(check: CheckOrigin) -> Self {
        let config = WebSocketConfig::default()
            .max_frame_size(Some(MAX_FRAME))
            .max_message_size(Some(MAX_FRAME))
            .write_buffer_size(0);
        let state = match accept_hdr_with_config(Memory::default(), check, Some(config)) {
            Err(HandshakeError::Interrupted(mid)) => State::Shaking(Some(mid)),
            // Nothing was received.
            _ => State::Shaking(None),
        };
        Self { state }
    }

    /// Takes received bytes; [`event`](Self::event) says what they mean, until it wants more.
    pub fn feed(&mut self, bytes: &[u8]) {
        if let Some(memory) = self.memory() {
            memory.input.extend_from_slice(bytes);
        }
    }

    /// The next thing that the received bytes say, and what is to be sent because of it.
    pub fn event(&mut self) -> (Event, Vec<u8>) {
        let event = match &mut self.state {
            // Not by recursion: a peer may send thousands of pings at once.
            State::Open(socket) => loop {
                match socket.read() {
                    Ok(Message::Ping(_) | Message::Frame(_)) => {}
                    read => break event_of(socket, read),
                }
            },
            State::Shaking(mid) => match mid.take().map(MidHandshake::handshake) {
                Some(Ok(socket)) => {
                    self.state = State::Open(socket);
                    Event::Open
                }
                Some(Err(HandshakeError::Interrupted(again))) => {
                    *mid = Some(again);
                    Event::More
                }
                Some(Err(HandshakeError::Failure(error))) => return (Event::End, refusal(&error)),
                None => Event::End,
            },
        };
        let output = self.memory().map(|memory| std::mem::take(&mut memory.output)).unwrap_or_default();
        (event, output)
    }

    fn memory(&mut self) -> Option<&mut Memory> {
        match &mut self.state {
            State::Open(socket) => Some(socket.get_mut()),
            State::Shaking(Some(mid)) => Some(mid.get_mut().get_mut()),
            State::Shaking(None) => None,
        }
    }
}

/// What a read says, and what is written because of it.
fn event_of(socket: &mut WebSocket<Memory>, read: Result<Message, Error>) -> Event {
    match read {
        Ok(Message::Close(_)) => {
            // The answer is written by the next call.
            let _ = socket.flush();
            Event::End
        }
        Ok(Message::Pong(_)) => Event::Pong,
        Ok(message) => Event::Message(message),
        Err(Error::Io(error)) if error.kind() == ErrorKind::WouldBlock => Event::More,
        Err(error) => {
            let code = match &error {
                Error::Capacity(_) => CloseCode::Size,
                Error::Utf8(_) => CloseCode::Invalid,
                _ => CloseCode::Protocol,
            };
            let reason = error.to_string().chars().take(60).collect::<String>().into();
            let _ = socket.close(Some(CloseFrame { code, reason }));
            let _ = socket.flush();
            Event::End
        }
    }
}

/// What a request gets that is no WebSocket handshake, or not a good one.
fn refusal(error: &Error) -> Vec<u8> {
    let (status, body) = match error {
        Error::Http(response) => {
            let body = response.body().as_ref().map(|body| String::from_utf8_lossy(body.as_ref()).into_owned());
            (response.status().to_string(), body.unwrap_or_default())
        }
        error => ("400 Bad Request".to_owned(), format!("{error}\n")),
    };
    crate::http::response(&status, body.as_bytes())
}

/// A frame as a server sends it, encoded once for all who get it.
pub fn encode(message: &Message) -> Vec<u8> {
    let payload = message.clone().into_data();
    let frame = match message {
        Message::Text(_) => Frame::message(payload, OpCode::Data(Data::Text), true),
        Message::Ping(_) => Frame::ping(payload),
        _ => Frame::message(payload, OpCode::Data(Data::Binary), true),
    };
    let mut bytes = Vec::with_capacity(frame.len());
    // Into memory: it cannot fail.
    let _ = frame.format(&mut bytes);
    bytes
}
