//! The answer of the `bulk_*` servers: a head and a body of 64 MiB, byte i of it i mod 251, in one piece that lives as long
//! as the program.
pub const BULK: usize = 64 << 20;
pub fn bulk() -> &'static [u8] {
    let mut all = format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {BULK}\r\n\r\n").into_bytes();
    all.extend((0..BULK).map(|i| (i % 251) as u8));
    all.leak()
}
