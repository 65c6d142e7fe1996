//! Steady state allocates nothing on the Rust side: per flush and per read, on a reactor and on a plain thread.
//!
//! A binary of its own: the counting allocator is the process's. BoringSSL's own record buffers are malloc's and are not
//! counted here.

#[allow(dead_code, reason = "the other tests need more of it")]
#[path = "tls/certs.rs"]
mod certs;
#[allow(dead_code, reason = "the other tests need more of it")]
#[path = "tls/client.rs"]
mod client;
#[allow(dead_code, reason = "the other tests need more of it")]
#[path = "tls/servers.rs"]
mod servers;

use client::HANG;
use epoxide_tests_e2e::{Case, block_within, wait_until};
use epoxide_tls::TlsConnection;
use servers::{World, serve};
use std::io::{Read, Write};
use std::sync::mpsc::{Receiver, Sender, channel};

const WARM_UP: usize = 4;
const ROUNDS: usize = 125;
const FLUSHES: usize = 16;
const KIB: [u8; 1024] = [7; 1024];

/// Rounds of `FLUSHES` flushes of 1 KiB, then one read of what the client says to it. Allocations of all but the first.
async fn rounds(conn: &mut TlsConnection) -> (u64, u64) {
    let (mut flushing, mut reading) = (0, 0);
    for round in 0..WARM_UP + ROUNDS {
        // Every poll, parking and yielding included, with the allocator watched.
        let mut flushed = 0;
        for _ in 0..FLUSHES {
            flushed += allocation_counter::measure(|| conn.stage(&KIB).unwrap()).count_total;
            std::future::poll_fn(|cx| {
                let mut polled = std::task::Poll::Pending;
                flushed += allocation_counter::measure(|| polled = conn.poll_flush(cx)).count_total;
                polled
            })
            .await
            .unwrap();
        }
        let (mut got, mut read) = (0, 0);
        while got < KIB.len() {
            got += std::future::poll_fn(|cx| {
                let mut polled = std::task::Poll::Pending;
                let counted = allocation_counter::measure(|| {
                    polled = conn.poll_read(cx).map(|data| data.unwrap().unwrap().len());
                });
                read += counted.count_total;
                polled
            })
            .await;
        }
        if round >= WARM_UP {
            flushing += flushed;
            reading += read;
        }
    }
    (flushing, reading)
}

/// Reads what each round sends, then says 1 KiB in two records.
fn answer_rounds(client: &mut client::Client) {
    for _ in 0..WARM_UP + ROUNDS {
        let mut all = [0; FLUSHES * KIB.len()];
        client.read_exact(&mut all).unwrap();
        client.write_all(&KIB[..24]).unwrap();
        client.write_all(&KIB[24..]).unwrap();
    }
}

fn served(
    case: &Case,
    tell: Sender<(u64, u64)>,
    give: Option<Sender<TlsConnection>>,
) -> (epoxide_tests_e2e::Server, World) {
    let world = World::new();
    let (server, _ends) = serve(case, &world.options().build().unwrap(), move |mut conn| {
        let (tell, give) = (tell.clone(), give.clone());
        async move {
            match give {
                Some(give) => give.send(conn).unwrap(),
                None => tell.send(rounds(&mut conn).await).unwrap(),
            }
            Ok(())
        }
    });
    (server, world)
}

#[test]
fn nothing_is_allocated_per_flush_and_per_read() {
    let case = Case::start();
    let counted = allocation_counter::measure(|| drop(std::hint::black_box(vec![1_u8; 100])));
    assert_eq!(counted.count_total, 1, "control: the allocator counts");

    let (tell, told): (_, Receiver<(u64, u64)>) = channel();
    let (server, world) = served(&case, tell.clone(), None);
    let mut client = client::connect(server.addr(), &client::context(&world.authority, |_| {}));
    answer_rounds(&mut client);
    assert_eq!(told.recv_timeout(HANG).unwrap(), (0, 0), "on the reactor");
    drop(client);
    drop(server);

    let (give, given) = channel();
    let (server, world) = served(&case, tell, Some(give));
    let mut client = client::connect(server.addr(), &client::context(&world.authority, |_| {}));
    let mut conn = given.recv_timeout(HANG).unwrap();
    let plain = std::thread::spawn(move || block_within(rounds(&mut conn), HANG).expect("it hangs"));
    answer_rounds(&mut client);
    assert_eq!(plain.join().unwrap(), (0, 0), "on a plain thread");
    drop(client);
    assert!(wait_until(HANG, || server.stats().open == 0));
}
