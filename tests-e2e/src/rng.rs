//! Job: seeded numbers for skews and garbage, so that a failing round can be run again.
//! State owned: one word. Thread class: pure.

/// A xorshift64* generator. Not for secrets.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// A generator whose sequence depends on `seed` alone.
    pub fn new(seed: u64) -> Self {
        Self(seed ^ 0x9E37_79B9_7F4A_7C15)
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// A number below `bound` (which must not be 0).
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next_u64() % bound
    }

    /// `len` bytes of noise.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| (self.next_u64() >> 32) as u8).collect()
    }

    /// Spins for a random while below `bound` turns: the head start of one side of a race.
    pub fn skew(&mut self, bound: u64) {
        for _ in 0..self.below(bound) {
            std::hint::spin_loop();
        }
    }
}
