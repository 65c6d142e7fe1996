//! The poll forms of a stream, in one hand-written future; and what a stream and two pipes tell of their connection.

use epoxide::{CloseReason, Connection};
use epoxide_pipes::{ByteStream, Duplex};
use epoxide_tests_e2e::{Case, Ending, Peer, Server, block_within, handing_over, loopback, pattern};
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::task::ready;
use std::thread;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(10);

/// Reads `len` bytes and sends them back, then ends its side: every step in its poll form.
async fn back(mut stream: ByteStream, len: usize) -> io::Result<()> {
    let (mut body, mut at) = (vec![0; len], 0);
    poll_fn(|cx| {
        while at < len {
            let space = &mut body[at..];
            at += match ready!(stream.poll_read(cx, space))? {
                0 => return io::Result::Err(io::ErrorKind::UnexpectedEof.into()).into(),
                n => n,
            };
        }
        io::Result::Ok(()).into()
    })
    .await?;
    // A part in one slice, the rest in two.
    let (head, rest) = body.split_at(len / 3);
    let mut left = head;
    poll_fn(|cx| {
        while !left.is_empty() {
            let n = ready!(stream.poll_write(cx, left))?;
            left = &left[n..];
        }
        io::Result::Ok(()).into()
    })
    .await?;
    let mut done = 0;
    poll_fn(|cx| {
        while done < rest.len() {
            let (first, second) = rest[done..].split_at((rest.len() - done) / 2);
            done += ready!(stream.poll_write_vectored(cx, &[IoSlice::new(first), IoSlice::new(second)]))?;
        }
        io::Result::Ok(()).into()
    })
    .await?;
    poll_fn(|cx| stream.poll_flush(cx)).await?;
    assert_eq!(stream.unsent_len(), 0, "flushed");
    stream.flush().await?;
    poll_fn(|cx| stream.poll_shutdown(cx)).await?;
    let late = poll_fn(|cx| stream.poll_write(cx, b"x")).await;
    assert_eq!(late.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    Ok(())
}

#[test]
fn a_future_by_hand_does_what_the_methods_do() {
    const LEN: usize = 3_000_000;
    let case = Case::start();
    let server = Server::start(&case, |b| {
        b.listen(loopback(), |connection: Connection| back(ByteStream::new(connection), LEN));
    });
    let mut peer = Peer::connect(server.addr());
    let mut sender = peer.stream().try_clone().unwrap();
    let sending = thread::spawn(move || io::Write::write_all(&mut sender, &pattern(LEN)));
    let (received, ending) = peer.read_to_end(SOON);
    sending.join().unwrap().unwrap();
    assert_eq!((received.len(), ending), (LEN, Ending::Eof));
    assert!(received == pattern(LEN));
    drop(peer);
    assert!(server.wait_quiet());
    assert_eq!(server.stats().handler_errors, 0, "an assertion of the handler is an error too");
}

/// Taken apart and put together again it is the same connection; it is closed from elsewhere, and told of a drain.
#[test]
fn two_pipes_and_a_stream_know_their_connection() {
    let case = Case::start();
    let (server, accepted) = handing_over(&case, |_| {});
    let mut peers: Vec<_> = (0..2).map(|_| Peer::connect(server.addr())).collect();
    let taken = || Duplex::new(accepted.recv_timeout(SOON).expect("handed over"));
    let (mut input, output) = taken().into_parts();
    peers[0].send(b"held").unwrap();
    assert_eq!(block_within(input.read(), SOON).unwrap().unwrap().buffer.len(), 4);
    input.advance_to(0, 0);
    let pipes = Duplex::from_parts(input, output);
    let (drains, closer) = (pipes.draining(), pipes.close_handle());
    let mut stream = ByteStream::from(pipes);
    let mut space = [0; 9];
    assert_eq!(block_within(stream.read(&mut space), SOON).unwrap().unwrap(), 4, "what was held is read first");
    assert_eq!(&space[..4], b"held");
    closer.reset();
    let error = block_within(stream.read(&mut space), SOON).unwrap().unwrap_err();
    assert_eq!(CloseReason::of(&error), Some(CloseReason::Local));
    assert_eq!(peers[0].ending(SOON), Ending::Reset);
    let other = ByteStream::from(taken());
    assert!(!drains.has_begun());
    server.reactor().drain(SOON);
    block_within(async { (drains.await, other.draining().await) }, SOON).expect("both are told");
}
