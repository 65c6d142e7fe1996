//! The application of `axum_app` and `https_axum`: JSON, a streamed body, a WebSocket echo, and a page that uses them.
//!
//! axum's handlers are `Send` futures, and run here on the reactor that accepted the connection. What they may not use is
//! tokio's runtime (`tokio::spawn`, `tokio::time`, axum's own `ws`): epoxide's timers and tasks take its place.
//!
//! State: none. Thread class: reactor threads (WebSockets are tasks of the reactor).

use crate::say::complain;
use async_tungstenite::WebSocketStream;
use async_tungstenite::tungstenite::handshake::derive_accept_key;
use async_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use async_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use async_tungstenite::tungstenite::{Error, Message};
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{any, get, post};
use axum::{Json, Router};
use clap::Args;
use epoxide::time;
use epoxide_pipes::transport::{Receive, Transmit};
use epoxide_pipes::{BodyTimeout, ByteStream, TowerService, upgraded_stream};
use futures_util::future::{Either, select};
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use std::io;
use std::pin::pin;
use std::time::Duration;

/// What the application can be told.
#[derive(Args, Clone, Copy, Debug)]
pub struct AppArgs {
    /// Bytes of a WebSocket frame, and of a message.
    #[arg(long, default_value_t = 1024 * 1024)]
    pub max_frame: usize,
}

/// How often a quiet WebSocket is asked whether it lives.
const PING: Duration = Duration::from_secs(20);

/// A client that stalls in a request's body for longer gets an error instead of an answer.
const BODY_STALL: Duration = Duration::from_secs(30);

#[derive(Clone, Copy)]
struct App {
    max_frame: usize,
}

/// What a start line says beside the first command; `site` is the beginning of its addresses.
pub fn also(site: &str) -> String {
    format!("or open {site}/ in a browser; a WebSocket that echoes is at {}/ws", site.replacen("http", "ws", 1))
}

/// The application for connections with these halves.
pub fn service<R: Receive, W: Transmit>(args: AppArgs) -> BodyTimeout<TowerService<Router>> {
    let router = Router::new()
        .route("/", get(async || Html(include_str!("axum_app.html"))))
        .route("/api/hello", get(async || Json(json!({ "hello": "world" }))))
        .route("/api/sum", post(sum))
        .route("/stream", get(streamed))
        .route("/ws", any(websocket::<R, W>))
        .with_state(App { max_frame: args.max_frame });
    BodyTimeout::new(TowerService::new(router), BODY_STALL)
}

/// `{"numbers": [1, 2]}` gives `{"sum": 3}`.
async fn sum(Json(request): Json<Value>) -> Result<Json<Value>, StatusCode> {
    let numbers = request["numbers"].as_array().ok_or(StatusCode::UNPROCESSABLE_ENTITY)?;
    let sum = numbers.iter().map(|n| n.as_f64().ok_or(StatusCode::UNPROCESSABLE_ENTITY)).sum::<Result<f64, _>>()?;
    Ok(Json(json!({ "sum": sum })))
}

/// Ten lines, one each tenth of a second.
async fn streamed() -> Body {
    let lines = time::interval(Duration::from_millis(100)).take(10).enumerate();
    Body::from_stream(lines.map(|(i, _)| Ok::<_, io::Error>(format!("line {i}\n"))))
}

/// Which page asks? A browser says so, and a page of another site may not.
fn same_origin(headers: &HeaderMap) -> bool {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    match (text(header::ORIGIN), text(header::HOST)) {
        // No browser.
        (None, _) => true,
        (Some(origin), Some(host)) => origin.split_once("://").is_some_and(|(_, site)| site == host),
        (Some(_), None) => false,
    }
}

/// The handshake of RFC 6455, section 4.2.
async fn websocket<R: Receive, W: Transmit>(State(app): State<App>, request: Request) -> Response {
    let headers = request.headers();
    let is = |name, wanted: &str| {
        let text = headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok()).unwrap_or_default();
        text.split(',').any(|part| part.trim().eq_ignore_ascii_case(wanted))
    };
    let asked = is(header::UPGRADE, "websocket") && is(header::CONNECTION, "upgrade");
    let Some(key) = headers.get(header::SEC_WEBSOCKET_KEY).filter(|_| asked) else {
        return (StatusCode::UPGRADE_REQUIRED, [(header::UPGRADE, "websocket")]).into_response();
    };
    if !is(header::SEC_WEBSOCKET_VERSION, "13") {
        return (StatusCode::UPGRADE_REQUIRED, [(header::SEC_WEBSOCKET_VERSION, "13")]).into_response();
    }
    if !same_origin(headers) {
        return (StatusCode::FORBIDDEN, "this page may not connect\n").into_response();
    }
    let accept = derive_accept_key(key.as_bytes());
    let upgraded = hyper::upgrade::on(request);
    epoxide::spawn_local(async move {
        let Ok(upgraded) = upgraded.await else { return };
        let Ok(stream) = upgraded_stream::<R, W>(upgraded) else { return };
        if let Err(error) = echo(stream, app).await {
            complain(format_args!("a WebSocket ended: {error}"));
        }
    })
    .detach();
    let answer = [
        (header::UPGRADE, "websocket"),
        (header::CONNECTION, "upgrade"),
        (header::SEC_WEBSOCKET_ACCEPT, accept.as_str()),
    ];
    (StatusCode::SWITCHING_PROTOCOLS, answer).into_response()
}

/// Sends every message back, until either side is done.
async fn echo<R: Receive, W: Transmit>(stream: ByteStream<R, W>, app: App) -> Result<(), Error> {
    let mut draining = stream.draining();
    let limit = Some(app.max_frame);
    let config = WebSocketConfig::default().max_frame_size(limit).max_message_size(limit);
    let mut socket = WebSocketStream::from_raw_socket(stream, Role::Server, Some(config)).await;
    loop {
        let message = match select(socket.next(), select(&mut draining, pin!(time::sleep(PING)))).await {
            Either::Left((message, _)) => message,
            Either::Right((Either::Left(_), _)) => {
                let away = CloseFrame { code: CloseCode::Away, reason: "the server stops".into() };
                return socket.close(Some(away)).await;
            }
            Either::Right((Either::Right(_), _)) => {
                socket.send(Message::Ping(Default::default())).await?;
                continue;
            }
        };
        match message {
            None | Some(Err(Error::ConnectionClosed)) => return Ok(()),
            Some(Ok(message @ (Message::Text(_) | Message::Binary(_)))) => socket.send(message).await?,
            // Pings and closes are answered by the codec, with the next read or flush.
            Some(Ok(_)) => socket.flush().await.or_else(|error| match error {
                Error::ConnectionClosed => Ok(()),
                other => Err(other),
            })?,
            Some(Err(error)) => return Err(error),
        }
    }
}
