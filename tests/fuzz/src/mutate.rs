//! Changes of an input.

use std::ops::Range;

use crate::random::Random;

/// Numbers at which arithmetic goes wrong.
const NUMBERS: [u64; 12] = [
    0,
    1,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    u64::MAX,
];

/// Changes an input up to eight times. `other` is another input, and `words` are what the format is made of.
pub(crate) fn mutate(input: &mut Vec<u8>, random: &mut Random, other: &[u8], words: &[&[u8]], most: usize) {
    for _ in 0..=random.below(8) {
        once(input, random, other, words, most);
        input.truncate(most);
    }
}

fn once(input: &mut Vec<u8>, random: &mut Random, other: &[u8], words: &[&[u8]], most: usize) {
    let at = random.below(input.len() + 1);
    let some = range(input.len(), random);
    match random.below(12) {
        0 => change_byte(input, at, |byte| byte ^ 1 << random.below(8)),
        1 => change_byte(input, at, |_| random.byte()),
        2 => drop(input.drain(some)),
        3 => input.truncate(at),
        4 => {
            let piece = input.get(some).unwrap_or_default().to_vec();
            insert(input, at, &piece);
        }
        5 => {
            let piece = other.get(range(other.len(), random)).unwrap_or_default().to_vec();
            insert(input, at, &piece);
        }
        6 => {
            let piece = other.get(range(other.len(), random)).unwrap_or_default().to_vec();
            input.splice(some, piece);
        }
        7 => insert(input, at, &number(random)),
        8 => drop(input.splice(some, number(random))),
        9 => insert(input, at, random.of(words).copied().unwrap_or_default()),
        10 => drop(input.splice(some, random.of(words).copied().unwrap_or_default().iter().copied())),
        _ => repeat(input, at, random, words, most),
    }
}

/// A part of an input, usually a short one.
fn range(length: usize, random: &mut Random) -> Range<usize> {
    let start = random.below(length + 1);
    let most = if random.below(4) == 0 { length } else { 16 };
    start..(start + random.below(most + 1)).min(length)
}

fn change_byte(input: &mut [u8], at: usize, change: impl FnOnce(u8) -> u8) {
    if let Some(byte) = input.get_mut(at) {
        *byte = change(*byte);
    }
}

fn insert(input: &mut Vec<u8>, at: usize, piece: &[u8]) {
    input.splice(at..at, piece.iter().copied());
}

/// A number as text, as bytes of either order, or as a varint.
fn number(random: &mut Random) -> Vec<u8> {
    let number = random.of(&NUMBERS).copied().unwrap_or_default().wrapping_add(random.next() % 3);
    let bytes = [1, 2, 4, 8].get(random.below(4)).copied().unwrap_or(8);
    match random.below(5) {
        0 => number.to_string().into_bytes(),
        1 => number.cast_signed().to_string().into_bytes(),
        2 => number.to_le_bytes().into_iter().take(bytes).collect(),
        3 => number.to_be_bytes().into_iter().skip(8 - bytes).collect(),
        _ => varint(number),
    }
}

fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let low = number.to_le_bytes()[0] & 0x7f;
        number >>= 7;
        if number == 0 {
            bytes.push(low);
            return bytes;
        }
        bytes.push(low | 0x80);
    }
}

/// Inserts a word or a part of the input several times.
fn repeat(input: &mut Vec<u8>, at: usize, random: &mut Random, words: &[&[u8]], most: usize) {
    let piece = piece(input, random, words);
    let times = [2, 10, 130, 1000].get(random.below(4)).copied().unwrap_or(2);
    insert(input, at, &piece.repeat(times.min(most / piece.len().max(1))));
}

/// Repeats a word or a part of the input until there is no more room: what is nested, long or endless.
pub(crate) fn fill(input: &mut Vec<u8>, random: &mut Random, words: &[&[u8]], most: usize) {
    let (at, piece) = (random.below(input.len() + 1), piece(input, random, words));
    let room = most.saturating_sub(input.len());
    insert(input, at, &piece.repeat(room / piece.len().max(1)));
}

fn piece(input: &[u8], random: &mut Random, words: &[&[u8]]) -> Vec<u8> {
    match random.below(4) {
        0 => input.get(range(input.len(), random)).unwrap_or_default().to_vec(),
        1 => vec![random.byte()],
        _ => random.of(words).copied().unwrap_or_default().to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_its_inputs_and_all_stay_within_the_limit() {
        let words: [&[u8]; 2] = [b"[", b"{\"a\":"];
        let inputs = |seed| {
            let mut random = Random::new(seed);
            let mut input = b"first".to_vec();
            let mut all = Vec::new();
            for _ in 0..2000 {
                mutate(&mut input, &mut random, b"another input", &words, 100);
                assert!(input.len() <= 100);
                all.push(input.clone());
            }
            all
        };
        assert_eq!(inputs(1), inputs(1));
        assert_ne!(inputs(1), inputs(2));
    }

    #[test]
    fn numbers_are_encoded_as_protocol_buffers_do() {
        assert_eq!(varint(0), [0]);
        assert_eq!(varint(300), [0xac, 0x02]);
        assert_eq!(varint(u64::MAX).len(), 10);
    }
}
