//! A model as bytes: magic, format as little-endian u16, BLAKE3 checksum of the rest, and the content as MessagePack.

use crate::error::DecodeError;
use crate::expand::{Layout, Resolved};
use crate::model::{OccupancyModel, TypeModel};
use crate::number::to_index;
use crate::report::{Report, TypeReport};
use crate::vocabulary::{LARGEST, Vocabulary};
use invariant::Present as _;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

const MAGIC: [u8; 8] = *b"OCCUPANC";
/// Version of the format. Increment it whenever the meaning of the bytes changes, including the hash, the
/// slots and the terms.
const FORMAT: u16 = 2;
/// Largest number of buckets in a model, as a power of two.
const MOST_BITS: u32 = 24;

#[derive(Serialize, Deserialize)]
struct Content<'a> {
    report: Cow<'a, Report>,
    /// Hashes of the vocabulary's words, in ascending order.
    words: Cow<'a, [u64]>,
    /// In the order of the report's types.
    types: Vec<TypeContent>,
}

#[derive(Serialize, Deserialize)]
struct TypeContent {
    scale: f32,
    ceiling: f32,
    /// Mean number of targets.
    usual: f32,
    /// Number of buckets, as a power of two.
    bits: u32,
    /// The upper half of each weight's bits; the lower half is 0.
    weights: Vec<u16>,
}

impl OccupancyModel {
    /// The model as bytes, some megabytes, for [`OccupancyModel::decode`].
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let content = Content {
            report: Cow::Borrowed(&self.report),
            words: Cow::Borrowed(self.vocabulary.hashes()),
            types: self.types.iter().map(TypeContent::of).collect(),
        };
        // No decoder would accept a model without content.
        let content = rmp_serde::to_vec(&content).present("the content of a model as MessagePack");
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&FORMAT.to_le_bytes());
        bytes.extend_from_slice(blake3::hash(&content).as_bytes());
        bytes.extend_from_slice(&content);
        bytes
    }

    /// Decodes a model from the bytes that [`OccupancyModel::encode`] returned.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let Content { report, words, types } =
            rmp_serde::from_slice(verified(bytes)?).map_err(|_| DecodeError::Wrong { what: "structure" })?;
        let report = report.into_owned();
        if !report.types.iter().all(is_finite) {
            return Err(DecodeError::NotFinite { what: "test error" });
        }
        if words.len() > LARGEST || !words.is_sorted_by(|one, next| one < next) {
            return Err(DecodeError::Wrong { what: "vocabulary" });
        }
        let vocabulary = Vocabulary::new(words.into_owned());
        if types.len() != report.types.len() {
            return Err(DecodeError::Wrong { what: "number of executor types" });
        }
        let types = types.iter().zip(&report.types).map(|(content, part)| content.model(part, &vocabulary));
        let types = types.collect::<Result<Vec<_>, _>>()?;
        Ok(Self { report, vocabulary, types })
    }
}

/// The bytes after the checksum, which was verified.
fn verified(bytes: &[u8]) -> Result<&[u8], DecodeError> {
    let rest = bytes.strip_prefix(&MAGIC).ok_or(DecodeError::NotAModel)?;
    let (format, rest) = rest.split_first_chunk::<2>().ok_or(DecodeError::Damaged)?;
    let found = u16::from_le_bytes(*format);
    if found != FORMAT {
        return Err(DecodeError::OtherFormat { found, known: FORMAT });
    }
    let (checksum, content) = rest.split_first_chunk::<{ blake3::OUT_LEN }>().ok_or(DecodeError::Damaged)?;
    if blake3::hash(content) == *checksum { Ok(content) } else { Err(DecodeError::Damaged) }
}

fn is_finite(part: &TypeReport) -> bool {
    part.test.is_none_or(|test| {
        [test.mean_absolute, test.mean_square, test.constant, test.group_mean, test.actual, test.predicted]
            .iter()
            .all(|error| error.is_finite())
    })
}

impl TypeContent {
    fn of(model: &TypeModel) -> Self {
        let TypeModel { crosses: _, layout, weights, scale, ceiling } = model;
        let upper = |weight: &f32| {
            let [_, _, low, high] = weight.to_bits().to_le_bytes();
            u16::from_le_bytes([low, high])
        };
        Self {
            scale: *scale,
            ceiling: *ceiling,
            usual: layout.usual,
            bits: layout.bits,
            weights: weights.iter().map(upper).collect(),
        }
    }

    fn model(&self, part: &TypeReport, vocabulary: &Vocabulary) -> Result<TypeModel, DecodeError> {
        let Self { scale, ceiling, usual, bits, .. } = *self;
        for (value, what) in [(scale, "scale"), (ceiling, "ceiling"), (usual, "usual number of targets")] {
            if !value.is_finite() {
                return Err(DecodeError::NotFinite { what });
            }
        }
        if !(1..=MOST_BITS).contains(&bits) || part.buckets != 1 << bits {
            return Err(DecodeError::Wrong { what: "number of buckets" });
        }
        if scale < 0.0 || ceiling < 0.0 || usual < 1.0 {
            return Err(DecodeError::Wrong { what: "scale" });
        }
        let layout = Layout { first: vocabulary.end(), bits, usual };
        if self.weights.len() != to_index(layout.end()) {
            return Err(DecodeError::Wrong { what: "number of weights" });
        }
        let weights: Vec<f32> =
            self.weights.iter().map(|upper| f32::from_bits(u32::from(*upper) << 16)).collect();
        if !weights.iter().all(|weight| weight.is_finite()) {
            return Err(DecodeError::NotFinite { what: "weight" });
        }
        let crosses = part.crosses.iter().map(|cross| Resolved::new(cross, vocabulary)).collect();
        Ok(TypeModel { crosses, layout, weights, scale, ceiling })
    }
}

#[cfg(test)]
mod tests;
