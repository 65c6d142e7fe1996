//! The table of what may cross threads, checked by the compiler, both ways.
//!
//! A row is a public type or future and whether it is `Send` and `Sync`. A type that gains or loses one fails here
//! before it surprises a user.

use epoxide::{
    AbortHandle, Accept, Address, AsyncFd, Builder, CloseHandle, CloseReason, Closed, Connect, ConnectAddr,
    ConnectOptions, Connection, Draining, Flush, Incoming, JoinError, JoinHandle, ListenAddr, ListenOptions, Listener,
    ListenerId, NotReady, OnThisThread, PanicPayload, PostError, Reactor, ReactorConfig, ReactorHandle, Read, ReadHalf,
    ReadMore, ReadSlice, ReadTimeoutSuspended, Ready, ReadyGuard, RecvBuf, Refusal, Rehome, RehomeError, Reserved,
    Runtime, SendAll, SendFile, SendOutcome, SharedFlush, SharedLimits, SharedWriter, Shutdown, ShutdownReport,
    StagedLimit, Stats, WriteHalf, YieldNow, time, workers,
};
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// Inherent constants win over the trait's where their bounds hold: that tells whether they do.
macro_rules! table {
    ($($type:ty: $send:tt $sync:tt,)+) => {{
        let mut rows = 0;
        $({
            struct Probe<T>(std::marker::PhantomData<T>);
            #[allow(dead_code)]
            trait No { const SEND: bool = false; const SYNC: bool = false; }
            impl<T> No for Probe<T> {}
            #[allow(dead_code)]
            impl<T: Send> Probe<T> { const SEND: bool = true; }
            #[allow(dead_code)]
            impl<T: Sync> Probe<T> { const SYNC: bool = true; }
            assert_eq!(Probe::<$type>::SEND, table!(@ $send), "Send of {}", stringify!($type));
            assert_eq!(Probe::<$type>::SYNC, table!(@ $sync), "Sync of {}", stringify!($type));
            rows += 1;
        })+
        rows
    }};
    (@ yes) => { true };
    (@ no) => { false };
}

#[test]
fn what_may_cross_threads() {
    let rows = table! {
        Connection: yes yes,
        ReadHalf: yes yes,
        WriteHalf: yes yes,
        CloseHandle: yes yes,
        ReadTimeoutSuspended: yes yes,
        Read<'static>: yes yes,
        ReadMore<'static>: yes yes,
        ReadSlice<'static>: yes yes,
        Flush<'static>: yes yes,
        SendAll<'static>: yes yes,
        Shutdown<'static>: yes yes,
        Rehome<'static>: yes yes,
        RehomeError: yes yes,
        Reserved<'static>: yes yes,
        RecvBuf: yes yes,
        ReactorHandle: yes yes,
        AbortHandle: yes yes,
        JoinHandle<u8>: yes yes,
        JoinHandle<Rc<u8>>: no no,
        Draining: yes yes,
        SharedWriter: yes yes,
        SharedFlush<'static>: yes yes,
        Closed<'static>: yes yes,
        SendOutcome: yes yes,
        SendFile<'static>: yes yes,
        SharedLimits: yes yes,
        Refusal: yes yes,
        JoinError: yes yes,
        PanicPayload: yes yes,
        PostError<u8>: yes yes,
        PostError<Rc<u8>>: no no,
        Runtime: yes yes,
        ShutdownReport: yes yes,
        Builder: yes no,
        Builder<OnThisThread>: yes no,
        Reactor: yes no,
        ListenAddr: yes yes,
        ListenOptions: yes yes,
        ListenerId: yes yes,
        Listener: yes yes,
        Accept<'static>: yes yes,
        Incoming<'static>: yes yes,
        Address: yes yes,
        Connect: yes yes,
        ConnectAddr: yes yes,
        ConnectOptions: yes yes,
        AsyncFd<OwnedFd>: yes yes,
        AsyncFd<Rc<OwnedFd>>: no no,
        Ready<'static, OwnedFd>: yes yes,
        ReadyGuard<'static, OwnedFd>: yes yes,
        NotReady: yes yes,
        ReactorConfig: yes yes,
        CloseReason: yes yes,
        StagedLimit: yes yes,
        Stats: yes yes,
        YieldNow: yes yes,
        workers::Workers: yes yes,
        workers::WorkersConfig: yes yes,
        workers::WorkersReport: yes yes,
        workers::SubmitError<u8>: yes yes,
        workers::SubmitError<Rc<u8>>: no no,
        workers::Entered<'static>: no no,
        time::Sleep: yes yes,
        time::Interval: yes yes,
        time::Timeout<Read<'static>>: yes yes,
    };
    assert!(rows >= 42);
}

#[test]
fn the_probe_itself_tells_yes_from_no() {
    let rows = table! {
        u8: yes yes,
        Rc<u8>: no no,
        std::cell::Cell<u8>: yes no,
    };
    assert_eq!(rows, 3);
}
