//! What may cross threads and be moved while it is polled, checked by the compiler.

use epoxide::Connection;
use epoxide_pipes::{
    ByteStream, Duplex, FlushPipe, FlushResult, FlushStream, PipeHandle, PipeReader, PipeWriter, ReadPipe, ReadResult,
    ReadSlice, SendPipe, Sequence, ShutdownPipe, Slices, WritePipe,
};
use std::time::Duration;

fn everywhere<T: Send + Sync + Unpin>() {}

fn sendable<T: Send>(_: T) {}

#[test]
fn pipes_streams_and_their_futures_may_go_anywhere() {
    everywhere::<(PipeReader, PipeWriter, Duplex, ByteStream, PipeHandle)>();
    everywhere::<(ReadPipe<'static>, ReadSlice<'static>, FlushPipe<'static>, FlushStream<'static>)>();
    everywhere::<(SendPipe<'static>, ShutdownPipe<'static>, WritePipe<'static>)>();
    everywhere::<(ReadResult<'static>, FlushResult, Sequence<'static>, Slices<'static>)>();
    // The unnamed futures too: never called, only compiled.
    let _ = |connection: Connection| {
        let (mut input, _output) = Duplex::new(connection).into_parts();
        sendable(input.read_at_least(1));
        sendable(input.read_exact(1));
        sendable(input.read_until(b"\n", 1, Duration::ZERO));
        let mut stream: Option<ByteStream> = None;
        if let Some(stream) = &mut stream {
            sendable(stream.write_all(b""));
        }
    };
}
