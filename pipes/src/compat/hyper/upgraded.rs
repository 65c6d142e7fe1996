//! The stream of an upgraded connection.
//!
//! Job: give the stream back that `serve_http` was given. State: none. Thread class: any thread.

use super::server_io::ServerIo;
use crate::ByteStream;
use crate::reader::PipeReader;
use crate::transport::{Receive, Transmit};
use bytes::{Bytes, BytesMut};
use hyper::upgrade::Upgraded;

/// The stream under an upgraded connection that `serve_http` served: without hyper's boxes around it, with the other
/// traits of [`ByteStream`], and with what the client has sent already. `R` and `W` are the halves of the connection.
///
/// # Errors
/// The upgraded connection comes back if its halves are others, or if HTTP/2 or somebody else served it.
pub fn upgraded_stream<R: Receive, W: Transmit>(upgraded: Upgraded) -> Result<ByteStream<R, W>, Upgraded> {
    let parts = upgraded.downcast::<ServerIo<R, W>>()?;
    let (input, output) = parts.io.into_stream().into_split();
    let (half, held) = input.into_parts();
    let prefix = joined(parts.read_buf, held);
    Ok(ByteStream::from_split(PipeReader::with_prefix(half, prefix), output))
}

fn joined(first: Bytes, second: Bytes) -> Bytes {
    if first.is_empty() {
        return second;
    }
    if second.is_empty() {
        return first;
    }
    let mut both = BytesMut::with_capacity(first.len() + second.len());
    both.extend_from_slice(&first);
    both.extend_from_slice(&second);
    both.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What hyper has read ahead comes first, then what the pipe still holds; one alone is not copied.
    #[test]
    fn what_hyper_read_comes_before_what_the_pipe_holds() {
        let (first, second) = (Bytes::from(vec![1; 100]), Bytes::from(vec![2; 50]));
        let alone = [joined(first.clone(), Bytes::new()), joined(Bytes::new(), second.clone())];
        assert_eq!([alone[0].as_ptr(), alone[1].as_ptr()], [first.as_ptr(), second.as_ptr()]);
        let both = joined(first, second);
        assert_eq!((both.len(), &both[98..102]), (150, &[1, 1, 2, 2][..]));
    }
}
