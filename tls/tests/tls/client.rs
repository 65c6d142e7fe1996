//! A blocking TLS client that is not epoxide: BoringSSL on a socket of the standard library.

use crate::certs::Identity;
use boring::ssl::{Ssl, SslContext, SslContextBuilder, SslMethod, SslStream, SslVerifyMode};
use boring::x509::store::X509StoreBuilder;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Longer than anything here takes; a read past it fails the test.
pub(crate) const HANG: Duration = Duration::from_secs(30);

pub(crate) type Client = SslStream<TcpStream>;

/// A context that trusts `authority`, and whatever else `set` says.
pub(crate) fn context(authority: &Identity, set: impl FnOnce(&mut SslContextBuilder)) -> SslContext {
    let mut context = SslContext::builder(SslMethod::tls()).unwrap();
    let mut store = X509StoreBuilder::new().unwrap();
    store.add_cert(authority.certificate.clone()).unwrap();
    context.set_verify_cert_store(store.build()).unwrap();
    context.set_verify(SslVerifyMode::PEER);
    set(&mut context);
    context.build()
}

/// The same, for a client with a certificate.
pub(crate) fn identified(authority: &Identity, client: &Identity) -> SslContext {
    context(authority, |context| {
        context.set_certificate(&client.certificate).unwrap();
        context.set_private_key(&client.key).unwrap();
    })
}

/// A handshake for `host`, or the reason why there is none. A hang is a panic, never a refusal.
pub(crate) fn try_connect(addr: SocketAddr, context: &SslContext, host: Option<&str>) -> io::Result<Client> {
    let mut ssl = Ssl::new(context).unwrap();
    if let Some(host) = host {
        ssl.set_hostname(host).unwrap();
    }
    handshake(addr, ssl)
}

pub(crate) fn handshake(addr: SocketAddr, ssl: Ssl) -> io::Result<Client> {
    over(TcpStream::connect(addr)?, ssl)
}

/// A handshake over a socket of the test's own making.
pub(crate) fn over(socket: TcpStream, ssl: Ssl) -> io::Result<Client> {
    socket.set_read_timeout(Some(HANG))?;
    socket.set_write_timeout(Some(HANG))?;
    socket.set_nodelay(true)?;
    let mut client = SslStream::new(ssl, socket).unwrap();
    match client.connect() {
        Ok(()) => Ok(client),
        Err(error) => {
            assert!(!error.would_block(), "the handshake hangs");
            Err(io::Error::other(error.to_string()))
        }
    }
}

pub(crate) fn connect(addr: SocketAddr, context: &SslContext) -> Client {
    try_connect(addr, context, Some("localhost")).expect("the handshake succeeds")
}

/// Sends a request, and gives back the whole answer (its head has a length).
pub(crate) fn ask(client: &mut Client, request: &str) -> io::Result<String> {
    client.write_all(request.as_bytes())?;
    answer(client)
}

/// One whole answer.
pub(crate) fn answer(client: &mut Client) -> io::Result<String> {
    let mut text = Vec::new();
    loop {
        let mut chunk = [0; 4096];
        match client.read(&mut chunk)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => text.extend_from_slice(&chunk[..n]),
        }
        if let Some(head) = epoxide_tests_e2e::find_head_end(&text) {
            let length = String::from_utf8_lossy(&text[..head]).to_ascii_lowercase();
            let length = length.split("content-length: ").nth(1).unwrap().split('\r').next().unwrap().to_owned();
            if text.len() >= head + length.parse::<usize>().unwrap() {
                return Ok(String::from_utf8(text).unwrap());
            }
        }
    }
}

pub(crate) const GET: &str = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// A fresh client is served: nobody was harmed.
pub(crate) fn assert_served(addr: SocketAddr, context: &SslContext) {
    let text = ask(&mut connect(addr, context), GET).expect("a fresh client is served");
    assert!(text.ends_with("tls-ok"), "{text}");
}
