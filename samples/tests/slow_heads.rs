//! Heads that come a byte at a time: the samples that read heads themselves end them by their deadline, which no byte moves.

mod common;

use common::{Sample, help};
use std::io::{Read, Write};
use std::time::{Duration, Instant};

#[test]
fn a_dripped_head_ends_by_its_deadline() {
    let root = std::env::temp_dir();
    let root = root.to_str().unwrap();
    let programs: [(&str, &[&str]); 4] = [
        (env!("CARGO_BIN_EXE_stream"), &[]),
        (env!("CARGO_BIN_EXE_pipe"), &[]),
        (env!("CARGO_BIN_EXE_sse"), &[]),
        (env!("CARGO_BIN_EXE_send_file"), &["--root", root]),
    ];
    let samples = programs.map(|(program, args)| {
        assert!(help(program).contains("--reactors"));
        Sample::start(program, args)
    });
    let begun = Instant::now();
    let mut clients: Vec<_> = samples
        .iter()
        .map(|sample| {
            let mut stream = sample.connect();
            stream.write_all(b"GET / HTTP/1.1\r\nX: ").unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
            stream
        })
        .collect();
    let mut open = vec![true; clients.len()];
    while open.contains(&true) {
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(120), "still open: {open:?}");
        for (i, stream) in clients.iter_mut().enumerate().filter(|(i, _)| open[*i]).collect::<Vec<_>>() {
            // The read's second is the gap between two bytes.
            let ended = stream.write_all(b"x").is_err() || matches!(stream.read(&mut [0; 512]), Ok(0));
            if ended {
                assert!(took >= Duration::from_secs(25), "{} was early: {took:?}", samples[i].first_line);
                open[i] = false;
            }
        }
    }
    for sample in samples {
        sample.stop();
    }
}
