//! A model as bytes: magic, format, total length, [report, vocabulary, weights by executor type], checksum. Numbers of
//! fixed width are little-endian, others have variable length with seven bits per byte. Only weights other than 0 are
//! written, each as the distance to the previous one and the upper half of its bits; the lower half is 0.

use crate::hash::hash;
use crate::model::{OccupancyModel, TypeModel};
use invariant::Present as _;

pub(crate) const MAGIC: [u8; 8] = *b"OCCUPANC";
/// Version of the format. Increment it whenever the meaning of the bytes changes, including the hash, the
/// slots and the terms.
pub(crate) const FORMAT: u16 = 1;
/// Number of bytes before the report: magic, format and length.
pub(crate) const HEADER: usize = 18;
/// Number of bytes of the checksum at the end.
pub(crate) const CHECKSUM: usize = 8;

/// Checksum of all bytes before it.
pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    hash(u64::from(FORMAT), bytes)
}

impl OccupancyModel {
    /// The model as bytes, some megabytes at most, for [`OccupancyModel::decode`].
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        // Without the report, no decoder would accept the model.
        let report = rmp_serde::to_vec_named(&self.report).present("the report of a model as MessagePack");
        put(&mut body, report.len() as u64);
        body.extend_from_slice(&report);
        let words = self.vocabulary.hashes();
        put(&mut body, words.len() as u64);
        let mut last = 0;
        for &word in words {
            put(&mut body, word - last);
            last = word;
        }
        put(&mut body, self.types.len() as u64);
        for model in &self.types {
            put_type(&mut body, model);
        }
        let length = HEADER + body.len() + CHECKSUM;
        let mut bytes = Vec::with_capacity(length);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&FORMAT.to_le_bytes());
        bytes.extend_from_slice(&(length as u64).to_le_bytes());
        bytes.append(&mut body);
        let checksum = checksum(&bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes
    }
}

fn put_type(bytes: &mut Vec<u8>, model: &TypeModel) {
    bytes.extend_from_slice(&model.scale.to_le_bytes());
    bytes.extend_from_slice(&model.ceiling.to_le_bytes());
    bytes.extend_from_slice(&model.layout.usual.to_le_bytes());
    put(bytes, u64::from(model.layout.bits));
    let weights = || (0_u64..).zip(&model.weights).filter(|(_, weight)| **weight != 0.0);
    put(bytes, weights().count() as u64);
    let mut next = 0;
    for (slot, weight) in weights() {
        put(bytes, slot - next);
        let [_, _, low, high] = weight.to_bits().to_le_bytes();
        bytes.extend_from_slice(&[low, high]);
        next = slot + 1;
    }
}

fn put(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    bytes.push((value & 0x7f) as u8);
}
