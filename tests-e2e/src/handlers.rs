//! Job: the handlers most tests serve with.
//! State owned: none. Thread class: runs as a task of a reactor, or anywhere else.

use std::io;

use epoxide::Connection;

/// The length of the head at the front of `bytes`, its blank line included.
pub fn find_head_end(bytes: &[u8]) -> Option<usize> {
    bytes.windows(4).position(|w| w == b"\r\n\r\n").map(|at| at + 4)
}

/// A whole HTTP response with this status and body.
pub fn http_reply(status: u16, body: &[u8]) -> Vec<u8> {
    let mut reply = format!("HTTP/1.1 {status} x\r\nContent-Length: {}\r\n\r\n", body.len()).into_bytes();
    reply.extend_from_slice(body);
    reply
}

/// Stages `bytes`; a refusal becomes an error, so that no test loses bytes in silence.
pub fn stage(connection: &mut Connection, bytes: &[u8]) -> io::Result<()> {
    connection.stage(bytes).map_err(|refused| io::Error::other(refused.to_string()))
}

/// Answers every request (framed by its blank line) with what `answer` makes of its head, and ends
/// at the peer's FIN. A head that grows past `cap` is answered 431 and ends the connection.
pub async fn serve_requests(
    mut connection: Connection,
    cap: usize,
    mut answer: impl FnMut(&[u8]) -> Vec<u8>,
) -> io::Result<()> {
    let mut unparsed = Vec::new();
    while let Some(received) = connection.read().await? {
        unparsed.extend_from_slice(&received);
        drop(received);
        let mut used = 0;
        while let Some(length) = find_head_end(&unparsed[used..]) {
            let reply = answer(&unparsed[used..used + length]);
            stage(&mut connection, &reply)?;
            used += length;
        }
        unparsed.drain(..used);
        if unparsed.len() > cap {
            stage(&mut connection, &http_reply(431, b""))?;
            return connection.shutdown().await;
        }
        if used > 0 {
            connection.flush().await?;
        }
    }
    Ok(())
}

/// 200 "ok" for every request.
pub async fn http_ok(connection: Connection) -> io::Result<()> {
    serve_requests(connection, 64 * 1024, |_| http_reply(200, b"ok")).await
}

/// Sends back what it receives.
pub async fn echo(mut connection: Connection) -> io::Result<()> {
    while let Some(received) = connection.read().await? {
        stage(&mut connection, &received)?;
        drop(received);
        connection.flush().await?;
    }
    Ok(())
}

/// Everything up to the peer's FIN.
pub async fn read_to_end(connection: &mut Connection) -> io::Result<Vec<u8>> {
    let mut all = Vec::new();
    while let Some(received) = connection.read().await? {
        all.extend_from_slice(&received);
    }
    Ok(all)
}

/// Panics on purpose. A function of its own, so that what calls it has `()` to return.
///
/// # Panics
/// Always.
pub fn provoke_panic(place: &str) {
    panic!("provoked on purpose: {place}");
}
