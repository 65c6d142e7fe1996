//! Descriptors run out in the middle of a load: who is connected is served, who waits is served later, connects fail by
//! their errno and work again. No fault seam here.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use epoxide_tests_e2e::{
    Case, FdLimit, Http, PeerOptions, Server, Unconnected, block_within, http_ok, loopback, wait_until,
};

const SOON: Duration = Duration::from_secs(20);

#[test]
fn running_out_in_mid_load_harms_nobody_who_is_connected() {
    let case = Case::start();
    let server = Server::start(&case, |b| {
        b.reactors(2);
        b.listen(loopback(), http_ok);
    });
    let (over, answers) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let mut client = Http::connect(server.addr());
            let (over, answers) = (&over, &answers);
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    assert_eq!(client.get().map(|r| r.status), Ok(200), "a connected client without descriptors");
                    answers.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        assert!(wait_until(SOON, || answers.load(Ordering::Relaxed) > 50));
        // Their sockets exist before the limit falls: the server alone runs out.
        let waiting: Vec<_> = (0..40).map(|_| Unconnected::new(server.addr(), PeerOptions::default())).collect();
        let limit = FdLimit::lower_to_free(5);
        let mut waiting: Vec<_> = waiting.into_iter().map(|c| Http::over(c.connect().unwrap())).collect();
        for client in &mut waiting {
            client.send(Http::GET).unwrap();
        }
        assert!(wait_until(SOON, || server.stats().accept_starved > 0), "vacuity: {:?}", server.stats());
        let before = answers.load(Ordering::Relaxed);
        assert!(wait_until(SOON, || answers.load(Ordering::Relaxed) > before + 100), "the load stands still");
        // A connect needs a descriptor too: an error that names itself, and no harm.
        let refused = block_within(server.reactor().connect(server.addr()), SOON).expect("it settles");
        let errno = refused.err().and_then(|error| raw(&error));
        assert!(matches!(errno, Some(libc::EMFILE | libc::ENFILE)), "a connect without descriptors: {errno:?}");
        drop(limit);
        for (i, client) in waiting.iter_mut().enumerate() {
            assert_eq!(client.response(SOON).map(|r| r.status), Ok(200), "client {i}, which had waited");
        }
        let connected = block_within(server.reactor().connect(server.addr()), SOON).expect("it settles");
        assert!(connected.is_ok(), "{connected:?}");
        over.store(true, Ordering::Relaxed);
    });
}

/// The errno of an error or of what it wraps.
fn raw(error: &std::io::Error) -> Option<i32> {
    let source = || std::error::Error::source(error.get_ref()?)?.downcast_ref::<std::io::Error>()?.raw_os_error();
    error.raw_os_error().or_else(source)
}
