//! Static files over HTTP, by sendfile(2): GET and HEAD, `Range: bytes=a-b`.
//!
//! The kernel copies from the page cache to the socket; no byte of a file passes through this process. Paths are resolved
//! by openat2(2) with RESOLVE_BENEATH: nothing outside of the root is ever opened, neither by `..` nor by a link, and only
//! regular files are served. A file that is not in the page cache blocks its reactor while the disk answers: for a large
//! cold archive, move the handler to a worker (the call is the same there).

use clap::Parser;
use epoxide::Connection;
use epoxide_samples::cli::ServerArgs;
use epoxide_samples::http::HEAD_DEADLINE;
use epoxide_samples::request::{Refused, Request, head_length, range_of};
use epoxide_samples::server;
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

#[derive(Parser, Debug)]
#[command(about = "Serves the regular files under a directory over HTTP, with ranges, by sendfile(2).")]
struct Args {
    #[command(flatten)]
    server: ServerArgs,
    /// The directory whose files are served; `/` is its index.html.
    #[arg(long, default_value = ".")]
    root: PathBuf,
}

/// Bytes of a request head; more without a blank line is refused.
const MAX_HEAD: usize = 16 * 1024;

fn main() -> io::Result<()> {
    let args = Args::parse();
    let root = open_root(&args.root)?;
    let mut server = args.server.builder();
    server.listen(args.server.target(), move |conn| serve(conn, root.clone()));
    let runtime = server.build()?;
    server::run_runtime("send_file", runtime, Duration::from_secs(30), |addr| {
        let (root, file) = (args.root.display(), some_file(&args.root));
        format!("files of {root}; try: curl -r 0-99 http://{addr}/{file}   (Ctrl-C drains)")
    })
}

/// A name to ask for.
fn some_file(root: &Path) -> String {
    let files = std::fs::read_dir(root).into_iter().flatten().flatten();
    let names = files.filter(|file| file.file_type().is_ok_and(|kind| kind.is_file())).map(|file| file.file_name());
    let plain = |name: &String| {
        !name.starts_with('.') && name.bytes().all(|c| c.is_ascii_alphanumeric() || b"._-".contains(&c))
    };
    names.filter_map(|name| name.into_string().ok()).filter(plain).min().unwrap_or_else(|| "FILE".into())
}

fn open_root(root: &Path) -> io::Result<Arc<OwnedFd>> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let fd = nix::fcntl::open(root, flags, nix::sys::stat::Mode::empty()).map_err(|errno| {
        io::Error::new(io::Error::from(errno).kind(), format!("--root {}: {errno}", root.display()))
    })?;
    Ok(Arc::new(fd))
}

async fn serve(mut conn: Connection, root: Arc<OwnedFd>) -> io::Result<()> {
    let mut unparsed = Vec::new();
    // A head has begun, and its deadline runs.
    let mut in_head = false;
    while let Some(data) = if in_head { conn.read() } else { conn.read_idle() }.await? {
        unparsed.extend_from_slice(&data);
        drop(data);
        while let Some(length) = head_length(&unparsed) {
            if std::mem::take(&mut in_head) {
                conn.set_deadline(None, "request head");
            }
            let request = Request::parse(&unparsed[..length]);
            unparsed.drain(..length);
            match request {
                Ok(request) => {
                    answer(&mut conn, &request, &root).await?;
                    if !request.keep_alive {
                        return conn.shutdown().await;
                    }
                }
                Err(refused) => return refuse(&mut conn, &refused, "Connection: close\r\n", false).await,
            }
        }
        if unparsed.len() > MAX_HEAD {
            return refuse(&mut conn, &Refused(431), "Connection: close\r\n", false).await;
        }
        if !unparsed.is_empty() && !std::mem::replace(&mut in_head, true) {
            conn.set_deadline(Some(Instant::now() + HEAD_DEADLINE), "request head");
        }
    }
    Ok(())
}

/// A file of the root and its size, if it is a regular one.
fn open(root: &OwnedFd, path: &[u8]) -> Result<(File, u64), Refused> {
    let path = if path.is_empty() { b"index.html" } else { path };
    // O_NONBLOCK: a FIFO without a writer would hold the reactor for ever.
    let how = OpenHow::new()
        .flags(OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOCTTY)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    let file = openat2(root, OsStr::from_bytes(path), how).map_err(|errno| match errno {
        Errno::EACCES | Errno::EPERM => Refused(403),
        Errno::EMFILE | Errno::ENFILE | Errno::EAGAIN => Refused(503),
        // EXDEV is an attempt to leave the root: it is told no more than that there is nothing.
        _ => Refused(404),
    })?;
    let file = File::from(file);
    match file.metadata() {
        Ok(metadata) if metadata.is_file() => Ok((file, metadata.len())),
        Ok(_) => Err(Refused(404)),
        Err(_) => Err(Refused(503)),
    }
}

async fn answer(conn: &mut Connection, request: &Request, root: &OwnedFd) -> io::Result<()> {
    let (file, size) = match open(root, &request.path) {
        Ok(found) => found,
        Err(refused) => return refuse(conn, &refused, "", request.head_only).await,
    };
    let partial = match range_of(request.range.as_deref(), size) {
        Ok(range) => range,
        Err(refused) => {
            return refuse(conn, &refused, &format!("Content-Range: bytes */{size}\r\n"), request.head_only).await;
        }
    };
    let status = if partial.is_some() { "206 Partial Content" } else { "200 OK" };
    let mut head = format!("HTTP/1.1 {status}\r\nAccept-Ranges: bytes\r\nContent-Type: {}\r\n", kind(&request.path));
    if let Some(range) = &partial {
        head += &format!("Content-Range: bytes {}-{}/{size}\r\n", range.start, range.end - 1);
    }
    let range = partial.unwrap_or(0..size);
    head += &format!("Content-Length: {}\r\n\r\n", range.end - range.start);
    conn.stage(head.as_bytes())?;
    if request.head_only {
        return conn.flush().await;
    }
    conn.send_file(OwnedFd::from(file), range).await
}

async fn refuse(conn: &mut Connection, refused: &Refused, headers: &str, head_only: bool) -> io::Result<()> {
    let text = match refused.0 {
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        416 => "Range Not Satisfiable",
        431 => "Request Header Fields Too Large",
        _ => "Service Unavailable",
    };
    let allow = if refused.0 == 405 { "Allow: GET, HEAD\r\n" } else { "" };
    let body = format!("{} {text}\n", refused.0);
    let head = format!("HTTP/1.1 {} {text}\r\n{allow}{headers}Content-Length: {}\r\n\r\n", refused.0, body.len());
    conn.stage(head.as_bytes())?;
    if !head_only {
        conn.stage(body.as_bytes())?;
    }
    conn.flush().await
}

fn kind(path: &[u8]) -> &'static str {
    match Path::new(OsStr::from_bytes(path)).extension().and_then(OsStr::to_str) {
        None if path.is_empty() => "text/html; charset=utf-8",
        Some("html" | "htm") => "text/html; charset=utf-8",
        Some("txt" | "md" | "rs" | "toml") => "text/plain; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("json") => "application/json",
        Some("svg") => "image/svg+xml",
        Some("png") => "image/png",
        Some("jpg" | "jpeg") => "image/jpeg",
        _ => "application/octet-stream",
    }
}
