//! The hash of texts and of weights' slots. It is part of the model's format: a model fitted by one program must be
//! read the same way by the next, so it is defined here and never changes within a format version.

use invariant::Present as _;
use std::hash::{BuildHasherDefault, Hasher};

const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
const MIX_MULTIPLIER: u64 = 0xd6e8_feb8_6659_fd93;

/// Spreads every bit of `value` over the whole word. The function is bijective.
pub(crate) const fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 32)).wrapping_mul(MIX_MULTIPLIER);
    let value = (value ^ (value >> 32)).wrapping_mul(MIX_MULTIPLIER);
    value ^ (value >> 32)
}

/// Hash of `bytes`. Each step is bijective in the word that it reads, so that bytes of the same length which differ
/// within one word never have the same hash.
pub(crate) fn hash(seed: u64, bytes: &[u8]) -> u64 {
    let mut state = mix(seed ^ (bytes.len() as u64).wrapping_mul(MULTIPLIER));
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        state = step(state, u64::from_le_bytes(*word));
    }
    let tail = rest.iter().fold(0, |tail, &byte| (tail << 8) | u64::from(byte));
    mix(step(state, tail))
}

const fn step(state: u64, word: u64) -> u64 {
    let state = (state ^ word).wrapping_mul(MULTIPLIER);
    state ^ (state >> 29)
}

/// The next random number of the sequence (splitmix64).
pub(crate) const fn next_random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(MULTIPLIER);
    mix(*state)
}

/// Shuffles `items` in an order determined by `seed`.
pub(crate) fn shuffle<T>(items: &mut [T], seed: u64) {
    let mut state = mix(seed);
    for last in (1..items.len()).rev() {
        let range = last as u64 + 1;
        let other = usize::try_from(next_random(&mut state) % range).present_or(last, "an index of a list");
        items.swap(last, other);
    }
}

/// A map whose keys are already hashes.
pub(crate) type ByHash<V> = std::collections::HashMap<u64, V, BuildHasherDefault<IdentityHasher>>;

/// A hasher that returns a key which is already a hash unchanged.
#[derive(Default)]
pub(crate) struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = hash(self.0, bytes);
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_that_of_the_format() {
        assert_eq!(hash(1, b"//app/main:server"), hash(1, b"//app/main:server"));
        assert_ne!(hash(1, b"//app/main:server"), hash(2, b"//app/main:server"));
        assert_ne!(hash(1, b""), hash(1, b"\0"));
        assert_eq!(format!("{:016x}", hash(3, b"--config=asan")), FIXED, "the format's hash has changed");
    }

    const FIXED: &str = "2ffebafdc24f3d04";

    #[test]
    fn a_shuffle_keeps_all_items() {
        let mut items: Vec<u32> = (0..100).collect();
        shuffle(&mut items, 7);
        assert_ne!(items, (0..100).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
    }
}
