//! `ws_hub` over TLS: a message is encrypted for each member, by the thread that broadcasts it.
//!
//! `ci/certs` makes the certificates. A member's end is a close frame, then a close_notify.

use clap::Parser;
use epoxide_samples::{https, hub_room};
use std::io;

#[derive(Parser, Debug)]
#[command(
    about = "A WebSocket hub over TLS at /ws: every message goes to all members. Any WebSocket client will do; / is a page that is one."
)]
struct Args {
    #[command(flatten)]
    hub: hub_room::HubArgs,
    #[command(flatten)]
    certs: https::CertArgs,
}

/// What makes a request of curl's a WebSocket's; it then shows what the others send.
const UPGRADE: &str = "-N --http1.1 -H Connection:Upgrade -H Upgrade:websocket -H Sec-WebSocket-Version:13 \
                       -H Sec-WebSocket-Key:dGhlIHNhbXBsZSBub25jZQ== ";

fn main() -> io::Result<()> {
    let Args { hub, certs } = Args::parse();
    let tls = https::build(&certs.server().alpn(["http/1.1"]))?;
    let hint = |addr: std::net::SocketAddr| {
        let (ca, port) = (certs.certs.join("ca.pem"), addr.port());
        format!(
            "try: open https://localhost:{port}/ in two browser windows (which must trust {ca})   or in two terminals: \
             SSL_CERT_FILE={ca} python3 -m websockets wss://localhost:{port}/ws (from: pip install websockets)   \
             or look on: {}ws   (Ctrl-C says 1001 to all)",
            certs.curl(UPGRADE, "localhost", addr),
            ca = ca.display()
        )
    };
    hub_room::run("wss_hub", hub, hint, |app| {
        move |conn| {
            let (handshake, app) = (tls.accept(conn), app.clone());
            async move { hub_room::join(handshake.await?, app).await }
        }
    })
}
