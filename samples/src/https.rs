//! What the TLS samples share: where certificates are, what to type, and the loop of `http::answer_all` over TLS.
//!
//! State: none. Thread class: any thread.

use crate::cli::{AnswerArgs, ServerArgs};
use crate::heads::Heads;
use crate::http::{HEAD_DEADLINE, MAX_HEAD, TOO_LARGE};
use crate::{http, server};
use clap::Args;
use epoxide::Connection;
use epoxide_tls::{ClientAuth, Ktls, Pem, ServerBuilder, TlsConfig, TlsConnection};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Instant;

/// The option of the TLS samples.
#[derive(Args, Clone, Debug)]
pub struct CertArgs {
    /// Where `ci/certs` has put the certificates.
    #[arg(long, env = "PLAYGROUND_CERTS", default_value = "target/certs")]
    pub certs: PathBuf,
}

/// What the samples that give one fixed answer over TLS take.
#[derive(Args, Clone, Debug)]
pub struct TlsAnswerArgs {
    /// Where, how wide, and what to say.
    #[command(flatten)]
    pub answer: AnswerArgs,
    /// Certificates.
    #[command(flatten)]
    pub certs: CertArgs,
}

/// What the samples that ask for a client's certificate take.
#[derive(Args, Clone, Debug)]
pub struct GreetArgs {
    /// Where and how wide.
    #[command(flatten)]
    pub server: ServerArgs,
    /// Certificates.
    #[command(flatten)]
    pub certs: CertArgs,
    /// Refuses clients without a certificate in the handshake.
    #[arg(long)]
    pub require: bool,
}

impl CertArgs {
    /// A file of the directory.
    pub fn pem(&self, name: &str) -> Pem {
        Pem::path(self.certs.join(name))
    }

    /// The options of a server for `localhost`.
    pub fn server(&self) -> ServerBuilder {
        TlsConfig::server(self.pem("localhost.pem"), self.pem("localhost.key"))
    }

    /// The curl command that asks `name` at `addr`. `more`: further arguments, with a blank behind each.
    pub fn curl(&self, more: &str, name: &str, addr: SocketAddr) -> String {
        let (ca, port) = (self.certs.join("ca.pem"), addr.port());
        format!("curl {more}--cacert {} --resolve {name}:{port}:{} https://{name}:{port}/", ca.display(), addr.ip())
    }
}

/// A configuration, with a hint where its files are not there.
///
/// # Errors
/// That of `build`.
pub fn build(options: &ServerBuilder) -> io::Result<TlsConfig> {
    options.build().map_err(|error| io::Error::new(error.kind(), format!("{error} (ci/certs makes certificates)")))
}

/// Serves every TLS connection with `handler`; `hint` makes the command that the start line suggests.
///
/// # Errors
/// What kept the server from starting, or the fault by which a reactor ended.
pub fn run<H, F>(
    name: &str,
    args: &ServerArgs,
    config: TlsConfig,
    hint: impl FnOnce(SocketAddr) -> String,
    handler: H,
) -> io::Result<()>
where
    H: Fn(TlsConnection) -> F + Clone + Send + 'static,
    F: Future<Output = io::Result<()>> + 'static,
{
    let serve = move |conn: Connection| {
        let handshake = config.accept(conn);
        let handler = handler.clone();
        async move { handler(handshake.await?).await }
    };
    server::run_saying(name, args, hint, |server| {
        server.listen(args.target(), serve);
    })
}

/// Serves with a handler that is told the answer to give. `ktls`: what the kernel is asked to do; where it cannot, the
/// session is served all the same, and the standard error says so once.
///
/// # Errors
/// As [`run`]; an option that cannot work.
pub fn run_answering<H, F>(name: &str, args: &TlsAnswerArgs, ktls: Ktls, handler: H) -> io::Result<()>
where
    H: Fn(TlsConnection, &'static [u8]) -> F + Clone + Send + 'static,
    F: Future<Output = io::Result<()>> + 'static,
{
    let answer: &'static [u8] = http::answer(&args.answer.body)?;
    let config = build(&args.certs.server().alpn(["http/1.1"]).ktls(ktls))?;
    let hint = |addr| args.certs.curl("", "localhost", addr);
    run(name, &args.answer.server, config, hint, move |conn| handler(conn, answer))
}

/// Greets clients by the name in their certificate; one without is answered 403, or not let in.
///
/// # Errors
/// As [`run`]; an option that cannot work.
pub fn run_greeting(name: &str, args: &GreetArgs, ktls: Ktls) -> io::Result<()> {
    let GreetArgs { server, certs, require } = args;
    let auth = if *require { ClientAuth::Required } else { ClientAuth::Optional };
    let config = build(&certs.server().client_auth(auth, certs.pem("ca.pem")).ktls(ktls))?;
    let client = |name| certs.certs.join(name).display().to_string();
    let identity = format!("--cert {} --key {} ", client("alice.pem"), client("alice.key"));
    let hint = |addr| certs.curl(&identity, "localhost", addr);
    run(name, server, config, hint, |conn| async move {
        let answer = match (conn.facts().peer_certificate(), conn.facts().peer_common_name()) {
            (None, _) => http::response("403 Forbidden", b"show a certificate\n"),
            (Some(_), name) => {
                http::response("200 OK", format!("hello {}\n", name.unwrap_or("you without a name")).as_bytes())
            }
        };
        answer_all(conn, &answer).await
    })
}

/// Gives every request the same answer until the client leaves, or stalls in a head for longer than `HEAD_DEADLINE`. A drain
/// ends it between requests.
///
/// # Errors
/// Why the session ended, if not by the client.
pub async fn answer_all(mut conn: TlsConnection, answer: &[u8]) -> io::Result<()> {
    let mut heads = Heads::default();
    // Bytes of a head that has begun and not ended.
    let mut partial = 0;
    loop {
        let read = if partial == 0 { conn.read_idle() } else { conn.read() };
        let Some(data) = read.await? else { return Ok(()) };
        let requests = heads.feed(&data);
        let before = partial;
        partial = match requests {
            0 => before + data.len(),
            _ if heads.ended(&data) => 0,
            _ => data.len(),
        };
        drop(data);
        if partial > MAX_HEAD {
            conn.stage(TOO_LARGE)?;
            return conn.shutdown().await;
        }
        match (before, partial) {
            (0, 0) => {}
            (_, 0) => conn.set_deadline(None, "request head"),
            (0, _) => conn.set_deadline(Instant::now().checked_add(HEAD_DEADLINE), "request head"),
            // It goes on, or ended and another one began: the same time for both.
            _ => {}
        }
        if requests == 1 {
            conn.send_all(answer).await?;
            continue;
        }
        for _ in 0..requests {
            conn.stage(answer)?;
        }
        conn.flush().await?;
    }
}
