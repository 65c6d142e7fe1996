//! Every form of reading tells an end from a cut, and both leave this side writing.

use crate::client::{self, HANG};
use crate::servers::{World, give_away};
use epoxide_tests_e2e::{Case, block_within, wait_until};
use epoxide_tls::{TlsConnection, TlsError};
use std::io::{self, ErrorKind, Write};
use std::net::Shutdown;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Form {
    Read,
    Idle,
    More,
    Slice,
    Peek,
    Try,
}

/// How many bytes came; none is the end.
fn read_by(form: Form, conn: &mut TlsConnection) -> io::Result<usize> {
    let len = |data: Option<epoxide::RecvBuf>| data.map_or(0, |data| data.len());
    let mut space = [0; 10];
    let read = match form {
        Form::Read => block_within(async { conn.read().await.map(len) }, HANG),
        Form::Idle => block_within(async { conn.read_idle().await.map(len) }, HANG),
        Form::More => {
            let mut held = block_within(conn.read(), HANG).expect("a read hangs").unwrap().expect("the last byte");
            block_within(conn.read_more(&mut held), HANG)
        }
        Form::Slice => block_within(conn.read_slice(&mut space), HANG),
        Form::Peek => block_within(conn.peek(&mut space), HANG),
        Form::Try => {
            let mut tried = Err(ErrorKind::WouldBlock.into());
            let came = wait_until(HANG, || {
                tried = conn.try_read().map(len);
                !matches!(&tried, Err(error) if error.kind() == ErrorKind::WouldBlock)
            });
            came.then_some(tried)
        }
    };
    read.expect("a read hangs")
}

#[test]
fn every_form_of_reading_tells_an_end_from_a_cut() {
    let case = Case::start();
    let world = World::new();
    let (server, given) = give_away(&case, &world);
    let context = client::context(&world.authority, |_| {});
    for form in [Form::Read, Form::Idle, Form::More, Form::Slice, Form::Peek, Form::Try] {
        for clean in [true, false] {
            let mut client = client::connect(server.addr(), &context);
            let mut conn = given.recv_timeout(HANG).unwrap();
            if form == Form::More {
                client.write_all(b"x").unwrap();
            }
            if clean {
                client.shutdown().unwrap();
            }
            client.get_ref().shutdown(Shutdown::Write).unwrap();
            let first = read_by(form, &mut conn);
            // Where nothing is in progress a FIN cuts nothing.
            match &first {
                Ok(0) => assert!(clean || form == Form::Idle, "{form:?}"),
                other => assert!(!clean && is_cut(other), "{form:?}: {other:?}"),
            }
            assert_eq!(conn.is_closed_by_peer(), clean, "{form:?}");
            let again = read_by(Form::Read, &mut conn);
            assert_eq!(is_cut(&again), !clean, "{form:?}: {again:?}");
            block_within(conn.send_all(b"bye"), HANG).expect("a flush hangs").unwrap();
            block_within(conn.shutdown(), HANG).expect("a flush hangs").unwrap();
            let mut rest = Vec::new();
            io::Read::read_to_end(&mut client, &mut rest).unwrap();
            assert_eq!(rest, b"bye", "{form:?}");
        }
    }
}

fn is_cut(read: &io::Result<usize>) -> bool {
    matches!(read, Err(error) if TlsError::of(error) == Some(&TlsError::Truncated))
}
