//! How much may be received of a handshake without taking any of the record behind it.
//!
//! Job: what the kernel is to decrypt must still be in the socket when it gets the keys. State: where in the stream of
//! records the handshake is. Thread class: pure.

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct Exact {
    header: [u8; 5],
    have: usize,
    /// Bytes of the record's body that are still to come.
    left: usize,
}

impl Exact {
    /// Bytes that belong to the record under way, at least 1.
    pub(crate) fn want(&self) -> usize {
        if self.left > 0 { self.left } else { self.header.len() - self.have }
    }

    /// Did the last record come to its end? A part of one costs BoringSSL nothing.
    pub(crate) fn is_whole(&self) -> bool {
        self.left == 0 && self.have == 0
    }

    /// These came.
    pub(crate) fn took(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let n = self.want().min(bytes.len());
            let (now, later) = bytes.split_at(n);
            bytes = later;
            if self.left > 0 {
                self.left -= n;
                continue;
            }
            self.header[self.have..self.have + n].copy_from_slice(now);
            self.have += n;
            if self.have == self.header.len() {
                self.left = usize::from(u16::from_be_bytes([self.header[3], self.header[4]]));
                self.have = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_followed_however_they_come() {
        let stream = [&[22, 3, 3, 0, 3, 1, 2, 3][..], &[20, 3, 3, 0, 0], &[22, 3, 3, 1, 0]].concat();
        for size in 1..=stream.len() {
            let mut exact = Exact::default();
            for piece in stream.chunks(size) {
                exact.took(piece);
            }
            assert_eq!((exact.want(), exact.is_whole()), (256, false), "in pieces of {size}");
        }
        let mut exact = Exact::default();
        let mut wanted = Vec::new();
        let mut rest = &stream[..];
        while !rest.is_empty() {
            let n = exact.want().min(rest.len());
            wanted.push(n);
            exact.took(&rest[..n]);
            rest = &rest[n..];
        }
        assert_eq!(wanted, [5, 3, 5, 5], "never beyond a record");
    }
}
