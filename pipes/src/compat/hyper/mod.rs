//! hyper over connections: its IO traits, timer and executors, an HTTP server and a pooled client.
//!
//! Job: the table of contents of this room. State: none. Thread class: see each file.
//!
//! | file | job |
//! |---|---|
//! | `io` | hyper's `Read` and `Write` for [`ByteStream`](crate::ByteStream) and [`Duplex`](crate::Duplex) |
//! | `rt` | its timer and executors |
//! | `options` | what `serve_http` can be told |
//! | `serve` | the driver of a served connection: versions, clocks, drain |
//! | `server_io` | what a served connection reads and writes through |
//! | `tracked` | counts the requests in progress |
//! | `upgraded` | the stream of an upgraded connection |
//! | `client`, `client_options`, `client_error`, `pool` | the client, what it can be told, its errors, its idle connections |

mod client;
mod client_error;
mod client_options;
mod io;
mod options;
mod pool;
mod rt;
mod serve;
mod server_io;
mod tracked;
mod upgraded;

pub use client::{ClientBody, HttpClient};
pub use client_error::HttpClientError;
pub use client_options::ClientOptions;
pub use options::{HttpOptions, HttpOptionsBuilder, HttpVersions};
pub use rt::{HttpTimer, LocalExecutor, SendExecutor};
pub use serve::{serve_http, serve_http_send};
pub use upgraded::upgraded_stream;
