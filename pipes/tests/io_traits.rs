//! What generic code finds in the traits of futures-io and tokio and the other tests' adapters do not ask for: buffered
//! reads of whole streams, several slices at once on a writer of its own, and an error behind bytes.

use epoxide::{CloseReason, Connection};
use epoxide_pipes::{ByteStream, Duplex, PipeWriter};
use epoxide_tests_e2e::{Case, Ending, Peer, Server, block_within, handing_over, wait_until};
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice, IoSliceMut};
use std::pin::Pin;
use std::sync::mpsc::Receiver;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(10);

fn pair(server: &Server, accepted: &Receiver<Connection>) -> (Peer, Connection) {
    (Peer::connect(server.addr()), accepted.recv_timeout(SOON).expect("handed over"))
}

fn done<F: Future>(future: F) -> F::Output {
    block_within(future, SOON).expect("in time")
}

/// Takes three bytes out of what is lent, and is lent the rest again.
#[test]
fn a_stream_lends_what_it_holds() {
    let case = Case::start();
    let (server, accepted) = handing_over(&case, |_| {});
    let (mut peer, connection) = pair(&server, &accepted);
    peer.send(b"abcdefghi").unwrap();
    let mut stream = ByteStream::new(connection);
    done(poll_fn(|cx| {
        use tokio::io::AsyncBufRead;
        let lent = std::task::ready!(Pin::new(&mut stream).poll_fill_buf(cx)).unwrap();
        assert_eq!(lent, b"abcdefghi");
        Pin::new(&mut stream).consume(3);
        ().into()
    }));
    let (input, output) = stream.into_split();
    let mut pipes = Duplex::from_parts(input, output);
    done(poll_fn(|cx| {
        use futures_io::AsyncBufRead;
        let lent = std::task::ready!(Pin::new(&mut pipes).poll_fill_buf(cx)).unwrap();
        assert_eq!(lent, b"defghi");
        Pin::new(&mut pipes).consume(6);
        ().into()
    }));
    peer.half_close().unwrap();
    done(poll_fn(|cx| {
        use tokio::io::AsyncBufRead;
        let lent = std::task::ready!(Pin::new(&mut pipes).poll_fill_buf(cx)).unwrap();
        assert_eq!(lent, b"", "the end");
        ().into()
    }));
}

async fn write_all(writer: &mut PipeWriter, by_tokio: bool) -> io::Result<()> {
    let parts = [IoSlice::new(b"one "), IoSlice::new(b""), IoSlice::new(b"two ")];
    let n = poll_fn(|cx| match by_tokio {
        true => tokio::io::AsyncWrite::poll_write_vectored(Pin::new(&mut *writer), cx, &parts),
        false => futures_io::AsyncWrite::poll_write_vectored(Pin::new(&mut *writer), cx, &parts),
    })
    .await?;
    assert_eq!(n, 8, "there is room for all of it");
    Ok(())
}

#[test]
fn a_writer_alone_takes_slices_and_ends() {
    let case = Case::start();
    let (server, accepted) = handing_over(&case, |_| {});
    let (mut peer, connection) = pair(&server, &accepted);
    let (_input, mut output) = Duplex::new(connection).into_parts();
    assert!(tokio::io::AsyncWrite::is_write_vectored(&output));
    done(async {
        write_all(&mut output, true).await.unwrap();
        write_all(&mut output, false).await.unwrap();
        poll_fn(|cx| tokio::io::AsyncWrite::poll_shutdown(Pin::new(&mut output), cx)).await.unwrap();
        assert_eq!(write_all(&mut output, true).await.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    });
    assert_eq!(peer.read_to_end(SOON), (b"one two one two ".to_vec(), Ending::Eof));
}

/// The bytes in the first slice are told; the reset behind them is the next read's.
#[test]
fn an_error_behind_bytes_comes_with_the_next_read() {
    let case = Case::start();
    let (server, accepted) = handing_over(&case, |_| {});
    let (mut peer, connection) = pair(&server, &accepted);
    let closer = connection.close_handle();
    let mut stream = ByteStream::new(connection);
    let mut read = |lens: [usize; 2]| {
        let (mut first, mut second) = (vec![0; lens[0]], vec![0; lens[1]]);
        let n = done(poll_fn(|cx| {
            let mut spaces = [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
            futures_io::AsyncRead::poll_read_vectored(Pin::new(&mut stream), cx, &mut spaces)
        }))?;
        first.extend_from_slice(&second);
        first.truncate(n);
        io::Result::Ok(first)
    };
    peer.send(b"abcdef").unwrap();
    assert_eq!(read([4, 100]).unwrap(), b"abcdef");
    peer.send(b"gh").unwrap();
    assert_eq!(read([2, 100]).unwrap(), b"gh", "the second slice has nothing to wait for");
    closer.reset();
    assert!(wait_until(SOON, || peer.ending(Duration::from_millis(1)).is_closed()));
    let error = read([4, 4]).unwrap_err();
    assert_eq!(CloseReason::of(&error), Some(CloseReason::Local));
}
