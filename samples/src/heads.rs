//! Requests framed by their blank line: how many heads end in the bytes fed so far.
//!
//! The function is the one that the benchmark's floor and its peers use, line for line, so that the parser's cost is
//! the same on both sides. State: how much of the blank line has matched. Thread class: pure.

/// Counts request heads that end in the bytes fed so far; keeps how much of "\r\n\r\n" matched.
#[derive(Default, Debug)]
pub struct Heads {
    matched: u8,
}

impl Heads {
    /// How many heads end in `bytes`.
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

    /// Did the last feed, of `bytes` with at least one head in them, end where a head ends?
    #[inline]
    pub fn ended(&self, bytes: &[u8]) -> bool {
        // With fewer bytes than a blank line has, the rest of it came before; `matched` tells it from a new beginning.
        bytes.ends_with(b"\r\n\r\n") || self.matched == 0 && bytes.len() < 4 && b"\r\n\r\n".ends_with(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::Heads;

    #[test]
    fn heads_are_counted_however_they_are_cut() {
        let text = b"GET / HTTP/1.1\r\n\r\nGET /\r\r\n\r\nhalf";
        assert_eq!(Heads::default().feed(text), 2);
        for cut in 0..text.len() {
            let mut heads = Heads::default();
            assert_eq!(heads.feed(&text[..cut]) + heads.feed(&text[cut..]), 2, "cut at {cut}");
        }
        let mut heads = Heads::default();
        assert_eq!(text.iter().map(|byte| heads.feed(&[*byte])).sum::<usize>(), 2);
    }
    /// The truth: after the head that ended last, is anything left? Not tried: one empty line behind a head, which a
    /// server may ignore (RFC 9112, 2.2) and this one does or does not, depending on the cut.
    #[test]
    fn an_end_is_told_from_the_beginning_of_the_next_head() {
        for tail in ["", "G", "GET /", "\r", "a\n", "a\r\n", "GET / HTTP/1.1\r\n"] {
            let text = [b"GET / HTTP/1.1\r\n\r\n".as_slice(), tail.as_bytes()].concat();
            for cut in 0..text.len() {
                let mut heads = Heads::default();
                let (before, after) = (heads.feed(&text[..cut]), heads.feed(&text[cut..]));
                assert_eq!(before + after, 1);
                if after == 1 {
                    assert_eq!(heads.ended(&text[cut..]), tail.is_empty(), "{tail:?} cut at {cut}");
                }
            }
        }
    }
}
