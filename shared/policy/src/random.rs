//! Randomness as a value: decisions get it as an argument, so that equal inputs give equal outputs.

use invariant::Present as _;

/// A pseudo-random number generator (`SplitMix64`, by Steele, Lea and Flood).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Creates the generator with this `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next pseudo-random number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// The next number below `bound`; 0 if `bound` is 0. Its bias is at most `bound` in 2^64.
    pub fn below(&mut self, bound: u64) -> u64 {
        let wide = u128::from(self.next_u64()) * u128::from(bound);
        u64::try_from(wide >> 64).present("the upper half of a product")
    }

    /// The next number in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }
}
