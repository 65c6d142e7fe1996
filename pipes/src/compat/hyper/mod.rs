//! hyper over connections: its IO traits, timer and executors, an HTTP server and a pooled client.
//!
//! Job: the table of contents of this room. State: none. Thread class: see each file.
//!
//! | file | job |
//! |---|---|
//! | `io` | hyper's `Read` and `Write` for [`ByteStream`](crate::ByteStream) and [`Duplex`](crate::Duplex) |
//! | `rt` | its timer and executors |
//! | `options` | what `serve_http` can be told |
//! | `serve` | the driver of a served connection: versions, drain |
//! | `clocks` | when a head, an idle connection or a drain ends it |
//! | `server_io` | what a served connection reads and writes through |
//! | `tracked` | counts the requests in progress |
//! | `body_timeout` | a clock for each request's body |
//! | `upgraded` | the stream of an upgraded connection |
//! | `client`, `client_body`, `client_options`, `client_error` | the client, its answers' bodies, what it can be told, its errors |
//! | `pool` | its idle connections |
//! | `client_io` | what a client's connection reads and writes through |

mod body_timeout;
mod client;
mod client_body;
mod client_error;
mod client_io;
mod client_options;
mod clocks;
mod io;
mod options;
mod pool;
mod rt;
mod serve;
mod server_io;
mod tracked;
mod upgraded;

pub use body_timeout::{BodyTimeout, TimedBody};
pub use client::HttpClient;
pub use client_body::ClientBody;
pub use client_error::HttpClientError;
pub use client_options::ClientOptions;
pub use options::{HttpOptions, HttpOptionsBuilder, HttpVersions};
pub use rt::{HttpTimer, LocalExecutor, SendExecutor};
pub use serve::{serve_http, serve_http_send};
pub use upgraded::upgraded_stream;
