use crate::encode::{CHECKSUM, FORMAT, HEADER, MAGIC, checksum};
use crate::error::DecodeError;
use crate::expand::{Layout, Resolved};
use crate::model::{OccupancyModel, TypeModel};
use crate::number::to_index;
use crate::report::{Report, TypeReport};
use crate::vocabulary::{LARGEST, Vocabulary};

/// Largest number of buckets in a model, as a power of two.
const MOST_BITS: u64 = 24;

impl OccupancyModel {
    /// Decodes a model from the bytes that [`OccupancyModel::encode`] returned.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut body = Reader(checked(bytes)?);
        let length = body.number("length")?;
        let report = body.bytes(length, "report")?;
        let report: Report =
            rmp_serde::from_slice(report).map_err(|_| DecodeError::Wrong { what: "report" })?;
        if !report.types.iter().all(is_finite) {
            return Err(DecodeError::NotFinite { what: "test error" });
        }
        let vocabulary = body.vocabulary()?;
        if body.number("number of executor types")? != report.types.len() as u64 {
            return Err(DecodeError::Wrong { what: "number of executor types" });
        }
        let types = report.types.iter().map(|part| body.type_model(part, &vocabulary));
        let types = types.collect::<Result<Vec<_>, _>>()?;
        if !body.0.is_empty() {
            return Err(DecodeError::Wrong { what: "end" });
        }
        Ok(Self { report, vocabulary, types })
    }
}

/// The bytes between header and checksum, after both were verified.
fn checked(bytes: &[u8]) -> Result<&[u8], DecodeError> {
    let mut header = Reader(bytes.strip_prefix(&MAGIC).ok_or(DecodeError::NotAModel)?);
    let short = |expected| DecodeError::Length { expected, found: bytes.len() as u64 };
    let least = (HEADER + CHECKSUM) as u64;
    let found = u16::from_le_bytes(header.array().ok_or(short(least))?);
    if found != FORMAT {
        return Err(DecodeError::OtherFormat { found, known: FORMAT });
    }
    let expected = u64::from_le_bytes(header.array().ok_or(short(least))?);
    let (content, sum) = bytes.split_last_chunk::<CHECKSUM>().ok_or(short(least))?;
    if expected != bytes.len() as u64 {
        return Err(short(expected));
    }
    if u64::from_le_bytes(*sum) != checksum(content) {
        return Err(DecodeError::Damaged);
    }
    content.get(HEADER..).ok_or(short(least))
}

fn is_finite(part: &TypeReport) -> bool {
    part.test.is_none_or(|test| {
        [test.mean_absolute, test.mean_square, test.constant, test.group_mean, test.actual, test.predicted]
            .iter()
            .all(|error| error.is_finite())
    })
}

/// Reads values from the front of the bytes.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*array)
    }

    fn bytes(&mut self, length: u64, what: &'static str) -> Result<&'a [u8], DecodeError> {
        let split = usize::try_from(length).ok().and_then(|length| self.0.split_at_checked(length));
        let (bytes, rest) = split.ok_or(DecodeError::Wrong { what })?;
        self.0 = rest;
        Ok(bytes)
    }

    /// Reads a number in variable-length encoding, seven bits per byte.
    fn number(&mut self, what: &'static str) -> Result<u64, DecodeError> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let [byte] = self.array().ok_or(DecodeError::Wrong { what })?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(DecodeError::Wrong { what })
    }

    fn single(&mut self, what: &'static str) -> Result<f32, DecodeError> {
        let value = f32::from_le_bytes(self.array().ok_or(DecodeError::Wrong { what })?);
        if value.is_finite() { Ok(value) } else { Err(DecodeError::NotFinite { what }) }
    }

    fn vocabulary(&mut self) -> Result<Vocabulary, DecodeError> {
        let wrong = DecodeError::Wrong { what: "vocabulary" };
        let words = self.number("vocabulary")?;
        if words > LARGEST as u64 {
            return Err(wrong);
        }
        let mut hashes = Vec::new();
        let mut last = None;
        for _ in 0..words {
            let gap = self.number("vocabulary")?;
            let next = last.unwrap_or(0_u64).checked_add(gap);
            last = next.filter(|_| last.is_none() || gap > 0);
            hashes.push(last.ok_or_else(|| wrong.clone())?);
        }
        Ok(Vocabulary::new(hashes))
    }

    fn type_model(&mut self, part: &TypeReport, vocabulary: &Vocabulary) -> Result<TypeModel, DecodeError> {
        let scale = self.single("scale")?;
        let ceiling = self.single("ceiling")?;
        let usual = self.single("usual number of targets")?;
        let bits = self.number("number of buckets")?;
        if !(1..=MOST_BITS).contains(&bits) || part.buckets != 1 << bits {
            return Err(DecodeError::Wrong { what: "number of buckets" });
        }
        if scale < 0.0 || ceiling < 0.0 || usual < 1.0 {
            return Err(DecodeError::Wrong { what: "scale" });
        }
        let layout = Layout { first: vocabulary.end(), bits: crate::number::low(bits), usual };
        let mut weights = vec![0.0; to_index(layout.end())];
        let mut left = weights.iter_mut();
        for _ in 0..self.number("number of weights")? {
            let gap = usize::try_from(self.number("place of a weight")?).unwrap_or(usize::MAX);
            let weight = left.nth(gap).ok_or(DecodeError::Wrong { what: "place of a weight" })?;
            let [low, high] = self.array().ok_or(DecodeError::Wrong { what: "weight" })?;
            *weight = f32::from_le_bytes([0, 0, low, high]);
            if !weight.is_finite() {
                return Err(DecodeError::NotFinite { what: "weight" });
            }
        }
        let crosses = part.crosses.iter().map(|cross| Resolved::new(cross, vocabulary)).collect();
        Ok(TypeModel { crosses, layout, weights, scale, ceiling })
    }
}

#[cfg(test)]
mod tests;
