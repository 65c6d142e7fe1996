//! Tests of `RecvBuf`.

use super::*;
use crate::buf::magazine::count_here;

fn filled(size: usize, bytes: &[u8]) -> RecvBuf {
    let mut fill = BufPool::of_size(size).fill();
    fill.space()[..bytes.len()].copy_from_slice(bytes);
    fill.commit(bytes.len())
}

/// Runs on a thread of its own, whose magazine is empty: what comes back can be counted.
fn alone(test: impl FnOnce() + Send + 'static) {
    std::thread::spawn(test).join().unwrap();
}

#[test]
fn it_can_go_anywhere() {
    fn check<T: Send + Sync + 'static>() {}
    check::<RecvBuf>();
    assert_eq!(format!("{:?}", filled(3001, b"secret")), "RecvBuf { len: 6 }");
    // The size of the thing a read returns.
    assert!(size_of::<RecvBuf>() <= 8);
    assert!(size_of::<Option<RecvBuf>>() <= 16);
}

#[test]
fn parts_share_the_block_and_the_last_returns_it() {
    alone(|| {
        let mut buf = filled(3002, b"headbody");
        let place = buf.as_ptr();
        let head = buf.split_to(4);
        assert_eq!((&head[..], &buf[..]), (&b"head"[..], &b"body"[..]));
        assert_eq!((head.as_ptr(), buf.as_ptr()), (place, place.wrapping_add(4)));
        assert!(buf.tail().is_none());
        drop(buf);
        assert_eq!(count_here(), 0);
        drop(head);
        assert_eq!(count_here(), 1);
    });
}

#[test]
fn edges_of_split_to_share_nothing() {
    alone(|| {
        let pool = BufPool::of_size(3003);
        let mut buf = filled(3003, b"abc");
        assert!(buf.split_to(0).is_empty());
        assert!(buf.tail().is_some(), "still unique");
        let mut all = buf.split_to(99);
        assert_eq!(&all[..], b"abc");
        assert!(all.tail().is_some(), "still unique");
        assert!(buf.is_empty() && buf.tail().is_none());
        // What is left holds no block, and takes one when it needs it.
        drop(all);
        assert_eq!(count_here(), 1);
        buf.grow(pool, 1 << 20).unwrap();
        assert_eq!((count_here(), buf.capacity_left()), (0, 3003));
    });
}

#[test]
fn consuming_from_the_front_and_truncating() {
    let mut buf = filled(3004, b"abcdef");
    assert_eq!(buf.get_u8(), b'a');
    buf.advance(1);
    assert_eq!(&buf[..], b"cdef");
    buf.truncate(99);
    assert_eq!(buf.remaining(), 4);
    buf.truncate(2);
    assert_eq!(buf.chunk(), b"cd");
    assert_eq!(buf.copy_to_bytes(1), &b"c"[..]);
    assert_eq!(buf.as_ref(), b"d");
}

#[test]
#[should_panic(expected = "only 3 bytes remain")]
fn advancing_too_far_panics_as_buf_asks() {
    filled(3005, b"abc").advance(4);
}

#[test]
fn freeze_copies_small_parts_only() {
    alone(|| {
        let buf = filled(80, &[7; 10]);
        let place = buf.as_ptr();
        let bytes = buf.freeze();
        assert_eq!(bytes.as_ptr(), place);
        let clone = bytes.clone();
        drop(bytes);
        assert_eq!(count_here(), 0);
        drop(clone);
        assert_eq!(count_here(), 1);
        let buf = filled(80, &[7; 9]);
        let place = buf.as_ptr();
        let bytes = buf.freeze();
        assert_ne!(bytes.as_ptr(), place);
        assert_eq!((&bytes[..], count_here()), (&[7; 9][..], 1));
        assert!(filled(80, b"").freeze().is_empty());
    });
}

#[test]
fn the_tail_is_filled_in_place() {
    let mut buf = filled(8, b"abc");
    assert_eq!(buf.capacity_left(), 5);
    buf.tail().unwrap()[..2].copy_from_slice(b"de");
    buf.committed(2);
    assert_eq!(&buf[..], b"abcde");
    buf.committed(usize::MAX);
    assert_eq!(buf.len(), 8);
    assert!(buf.tail().is_none());
    // All consumed: the whole block is the tail again.
    buf.advance(8);
    assert_eq!(buf.tail().unwrap().len(), 8);
}

#[test]
fn growing_keeps_the_bytes_and_stops_at_the_limit() {
    let data: Vec<u8> = (0..100).collect();
    let pool = BufPool::of_size(100);
    let mut buf = filled(100, &data);
    assert!(buf.tail().is_none());
    buf.grow(pool, 300).unwrap();
    assert_eq!((&buf[..], buf.capacity_left()), (&data[..], 156));
    let n = buf.tail().unwrap().len();
    buf.committed(n);
    buf.grow(pool, 300).unwrap();
    assert_eq!((&buf[..100], buf.capacity_left()), (&data[..], 300 - 256));
    buf.committed(44);
    let error = buf.grow(pool, 300).unwrap_err();
    assert_eq!(error, GrowError { len: 300, max: 300 });
    assert_eq!((&buf[..100], buf.len()), (&data[..], 300));
    let error = io::Error::from(error);
    assert_eq!(error.kind(), io::ErrorKind::QuotaExceeded);
    assert!(error.to_string().contains("300"));
    // Once little is left unread it moves back to a block of the connection's size.
    buf.advance(290);
    buf.grow(pool, 300).unwrap();
    assert_eq!((buf.len(), buf.capacity_left()), (10, 90));
}

#[test]
fn growing_moves_within_the_block_when_there_is_room_and_out_of_a_shared_one() {
    let pool = BufPool::of_size(64);
    let mut buf = filled(64, &[1; 64]);
    let place = buf.as_ptr();
    buf.advance(60);
    buf.grow(pool, 1 << 20).unwrap();
    assert_eq!((buf.as_ptr(), &buf[..], buf.capacity_left()), (place, &[1; 4][..], 60));
    let front = buf.split_to(1);
    assert!(buf.tail().is_none());
    buf.grow(pool, 1 << 20).unwrap();
    assert_eq!((&front[..], &buf[..], buf.capacity_left()), (&[1][..], &[1; 3][..], 61));
}

#[test]
fn it_is_dropped_on_another_thread() {
    alone(|| {
        let buf = filled(3006, b"x");
        std::thread::spawn(move || drop(buf)).join().unwrap();
        assert_eq!(count_here(), 0);
        // The other thread's end has brought it to the depot.
        assert_eq!(BufPool::of_size(3006).depot_len(), 1);
    });
}
