//! The answer, and how many requests end in the bytes received so far.
pub const RESPONSE: &[u8] =
    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 13\r\n\r\nHello, World!";

/// Counts request heads that end in the bytes fed so far; keeps how much of "\r\n\r\n" matched.
#[derive(Default)]
pub struct Heads {
    matched: u8,
}
impl Heads {
    pub fn feed(&mut self, bytes: &[u8]) -> usize {
        const END: &[u8; 4] = b"\r\n\r\n";
        if self.matched == 0 && bytes.ends_with(END) {
            // whole heads only: the common case
            return memchr::memmem::find_iter(bytes, END).count();
        }
        let mut n = 0;
        for &b in bytes {
            if b == END[self.matched as usize] {
                self.matched += 1;
                if self.matched == 4 {
                    self.matched = 0;
                    n += 1;
                }
            } else {
                self.matched = (b == b'\r') as u8;
            }
        }
        n
    }
}
