//! Every way to stage: what goes out is what was staged, in order, however it was cut; and what a connection says of itself.

use crate::client::{self, HANG, connect};
use crate::servers::{World, serve};
use bytes::{BufMut, Bytes};
use epoxide::{Clock, CloseReason};
use epoxide_pipes::transport::Transmit;
use epoxide_tests_e2e::{Case, pattern};
use epoxide_tls::TlsConnection;
use std::io::{self, Read, Write};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// In every way, small and larger than a record, through the connection's own methods or those of the trait.
fn stage_all(mut stage: impl FnMut(usize, Bytes) -> io::Result<()>, all: &Bytes) -> io::Result<()> {
    let mut left = all.clone();
    for (step, len) in [1, 10, 5_000, 16_384, 17_000, 100_000, 3].into_iter().cycle().enumerate() {
        if left.is_empty() {
            return Ok(());
        }
        stage(step, left.split_to(len.min(left.len())))?;
    }
    unreachable!("the steps are without end")
}

/// One of the four ways in turn.
fn by_methods(conn: &mut TlsConnection, step: usize, piece: Bytes) -> io::Result<()> {
    let before = conn.staged_len();
    match step % 4 {
        0 => conn.stage(&piece)?,
        1 => conn.stage_bytes(piece.clone())?,
        2 => conn.try_reserve(piece.len())?.put_slice(&piece),
        _ => {
            // More than is filled: the rest is taken back.
            conn.spare(piece.len() + 100)?[..piece.len()].copy_from_slice(&piece);
            conn.advance(piece.len());
        }
    }
    assert_eq!(conn.staged_len(), before + piece.len());
    Ok(())
}

fn by_trait<W: Transmit>(half: &mut W, step: usize, piece: Bytes) -> io::Result<()> {
    let before = half.staged_len();
    match step % 4 {
        0 => half.stage_bytes(piece.clone())?,
        1 => half.stage(&piece)?,
        2 => {
            half.spare(piece.len())?[..piece.len()].copy_from_slice(&piece);
            half.advance(piece.len());
        }
        _ => half.try_reserve(piece.len())?.put_slice(&piece),
    }
    assert_eq!(half.staged_len(), before + piece.len());
    Ok(())
}

#[test]
fn every_way_to_stage_keeps_the_order() {
    const LEN: usize = 2_000_000;
    let case = Case::start();
    let world = World::new();
    let all = Bytes::from(pattern(LEN));
    for trait_only in [false, true] {
        let all = all.clone();
        let (server, _ends) = serve(&case, &world.options().build().unwrap(), move |mut conn| {
            let all = all.clone();
            async move {
                if !trait_only {
                    stage_all(|step, piece| by_methods(&mut conn, step, piece), &all)?;
                    conn.shutdown().await?;
                    while conn.read().await?.is_some() {}
                    return Ok(());
                }
                let (mut reader, mut writer) = conn.into_split();
                stage_all(|step, piece| by_trait(&mut writer, step, piece), &all)?;
                writer.shutdown().await?;
                while reader.read().await?.is_some() {}
                Ok(())
            }
        });
        let mut client = connect(server.addr(), &client::context(&world.authority, |_| {}));
        let mut received = Vec::new();
        client.read_to_end(&mut received).unwrap();
        assert!(received == pattern(LEN), "{} of {LEN} bytes, or others", received.len());
        client.shutdown().unwrap();
    }
}

/// The facts are those of the connection below; a deadline ends the session like any connection.
#[test]
fn a_session_knows_whose_it_is() {
    let case = Case::start();
    let world = World::new();
    let (tell, told) = channel();
    let (server, _ends) = serve(&case, &world.options().build().unwrap(), move |mut conn| {
        let tell = tell.clone();
        async move {
            let facts = (conn.peer_addr()?, conn.local_addr()?, conn.listener(), conn.reactor().id(), conn.id());
            assert!(!conn.is_draining() && conn.close_reason().is_none());
            conn.set_deadline(Some(Instant::now() + Duration::from_millis(50)), "a test's");
            let error = conn.read().await.unwrap_err();
            let _ = tell.send((facts, CloseReason::of(&error), conn.close_reason()));
            Ok(())
        }
    });
    let mut client = connect(server.addr(), &client::context(&world.authority, |_| {}));
    let ours = client.get_ref().local_addr().unwrap();
    let ((peer, local, listener, reactor, _id), error, reason) = told.recv_timeout(HANG).unwrap();
    assert_eq!((peer, local, listener.index(), reactor), (ours, server.addr(), 0, server.reactor().id()));
    assert_eq!((error, reason), (reason, Some(CloseReason::Timeout(Clock::Deadline("a test's")))));
    let _ = client.write_all(b"late");
}
