//! The encoding of a build until it is learned from: ids as differences with seven bits per byte, some 300 bytes for a
//! build of a hundred targets.

use crate::facts::Hashed;
use crate::intern::Interner;
use crate::number::count;

/// The interned values of each kind.
#[derive(Debug, Default)]
pub(crate) struct Interners {
    pub(crate) commands: Interner,
    pub(crate) groups: Interner,
    pub(crate) priorities: Interner,
    pub(crate) flags: Interner,
    pub(crate) flag_names: Interner,
    pub(crate) targets: Interner,
    pub(crate) packages: Interner,
}

/// Writes rows; reused between builds to save allocations.
#[derive(Debug, Default)]
pub(crate) struct RowWriter {
    bytes: Vec<u8>,
    ids: Vec<(u32, u32)>,
}

impl RowWriter {
    /// Encodes the row of a build. `counts` is set for builds to learn from: their values then count as seen.
    pub(crate) fn write(&mut self, build: &Hashed, values: &mut Interners, counts: bool) -> &[u8] {
        self.bytes.clear();
        self.put(values.commands.id(build.command, counts));
        self.put(values.groups.id(build.group, counts));
        self.put(values.priorities.id(build.priority, counts));
        self.put(build.target_count);
        // A name is counted once for each of its flags, which only makes it more likely to be in the vocabulary.
        let flags = build.flags.iter();
        self.ids.clear();
        self.ids.extend(
            flags.map(|&(name, flag)| (values.flag_names.id(name, counts), values.flags.id(flag, counts))),
        );
        self.put_pairs();
        self.ids.clear();
        self.ids.extend(build.targets.iter().map(|&target| (values.targets.id(target, counts), 0)));
        self.put_ids();
        self.ids.clear();
        let packages = build.packages.iter();
        self.ids.extend(packages.map(|&(package, targets)| (values.packages.id(package, counts), targets)));
        self.put_pairs();
        &self.bytes
    }

    fn put_ids(&mut self) {
        let mut ids = std::mem::take(&mut self.ids);
        ids.sort_unstable();
        self.put(count(ids.len()));
        let mut last = 0;
        for &(id, _) in &ids {
            self.put(id - last);
            last = id;
        }
        self.ids = ids;
    }

    fn put_pairs(&mut self) {
        let mut ids = std::mem::take(&mut self.ids);
        ids.sort_unstable();
        self.put(count(ids.len()));
        let mut last = 0;
        for &(id, other) in &ids {
            self.put(id - last);
            self.put(other);
            last = id;
        }
        self.ids = ids;
    }

    fn put(&mut self, mut value: u32) {
        while value >= 0x80 {
            self.bytes.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push((value & 0x7f) as u8);
    }
}

/// Reads the rows that a [`RowWriter`] wrote.
#[derive(Debug)]
pub(crate) struct RowReader<'a>(pub(crate) &'a [u8]);

impl RowReader<'_> {
    /// Reads the next number; 0 beyond the end.
    #[inline]
    pub(crate) fn take(&mut self) -> u32 {
        let mut value = 0;
        let mut shift = 0;
        while let Some((&byte, rest)) = self.0.split_first() {
            self.0 = rest;
            value |= u32::from(byte & 0x7f) << shift;
            if byte < 0x80 || shift >= 28 {
                break;
            }
            shift += 7;
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back() {
        let mut writer = RowWriter::default();
        let numbers = [0, 1, 127, 128, 16_383, 16_384, 2_097_152, u32::MAX];
        for &number in &numbers {
            writer.put(number);
        }
        let mut reader = RowReader(&writer.bytes);
        for number in numbers {
            assert_eq!(reader.take(), number);
        }
        assert_eq!(reader.take(), 0);
    }
}
