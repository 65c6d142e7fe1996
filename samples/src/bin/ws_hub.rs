//! A WebSocket hub: every message that a member sends goes to all members, the sender included.
//!
//! A member that does not keep up is disconnected with 1013, one that does not answer pings is let go, and a stop says 1001
//! to all. `wss_hub` is the same over TLS.

use clap::Parser;
use epoxide_samples::hub_room;
use std::io;

#[derive(Parser, Debug)]
#[command(
    about = "A WebSocket hub at /ws: every message goes to all members. Any WebSocket client will do; / is a page that is one."
)]
struct Args {
    #[command(flatten)]
    hub: hub_room::HubArgs,
}

fn main() -> io::Result<()> {
    let hint = |addr| {
        format!(
            "try: open http://{addr}/ in two browser windows   or in two terminals: python3 -m websockets ws://{addr}/ws \
             (from: pip install websockets)   (Ctrl-C says 1001 to all)"
        )
    };
    hub_room::run("ws_hub", Args::parse().hub, hint, |app| move |conn| hub_room::join(conn, app.clone()))
}
