use crate::chunks::Chunks;
use crate::facts::{BuildFacts, Hashed, Kind, flag_name};
use crate::hash::{ByHash, mix};
use crate::number::{count, low, single, to_index};
use crate::rows::{Interners, RowWriter};
use invariant::Present as _;

/// Percentage of builds that a model is tested on and never learns from: 5 % (section 4.3 of the paper).
const TEST_SHARE: u64 = 5;
/// Maximum number of executor types; builds of further types are not learned from.
const MOST_TYPES: usize = 256;
/// Maximum number of flag names that crosses can use; names longer than [`LONGEST_NAME`] bytes are not used either.
const MOST_NAMES: usize = 1 << 16;
const LONGEST_NAME: usize = 256;

/// Whether the build with this key is one to test on. This depends only on the key, so that a build stays on its side
/// of the split from one day's training to the next.
#[must_use]
pub const fn is_test(key: u64) -> bool {
    mix(key ^ 0x7e57) % 100 < TEST_SHARE
}

/// Finished builds to learn from, stored compactly: some 350 bytes for a build of a hundred targets, at most 8 KiB for
/// any build. The only texts kept are the names of flags.
#[derive(Debug, Default)]
pub struct Dataset {
    rows: Chunks,
    /// For each row, 32 bits of the hash of its key, from which the search derives its own splits.
    draws: Vec<u32>,
    values: Interners,
    /// Flag names by hash, to display crosses.
    flag_names: ByHash<String>,
    types: Vec<TypeLabels>,
    hashed: Hashed,
    writer: RowWriter,
}

/// ESU that the builds which asked for one executor type used of that type.
#[derive(Debug)]
pub(crate) struct TypeLabels {
    pub(crate) executor_type: String,
    pub(crate) train: Vec<Label>,
    pub(crate) test: Vec<Label>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Label {
    pub(crate) row: u32,
    pub(crate) esu: f32,
}

impl Dataset {
    /// Creates a dataset without builds.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a finished build. `usage` holds the ESU that it occupied of each executor type it asked for, 0 if
    /// everything was a cache hit; the model learns nothing about types that it does not name. `key` is a hash of the
    /// build's id: it alone decides whether the build is to learn from or to test on ([`is_test`]). ESU that are
    /// negative or not finite are ignored.
    pub fn push<'u>(
        &mut self,
        facts: &BuildFacts<'_>,
        usage: impl IntoIterator<Item = (&'u str, f64)>,
        key: u64,
    ) {
        let row = count(self.rows.len());
        let test = is_test(key);
        let mut used = false;
        for (executor_type, esu) in usage {
            if !(esu.is_finite() && esu >= 0.0) {
                continue;
            }
            let Some(labels) = self.labels(executor_type) else { continue };
            let label = Label { row, esu: single(esu.min(f64::from(f32::MAX))) };
            let split = if test { &mut labels.test } else { &mut labels.train };
            split.push(label);
            used = true;
        }
        if !used {
            return;
        }
        let known = self.values.flag_names.values().len();
        self.hashed.read(facts);
        let bytes = self.writer.write(&self.hashed, &mut self.values, !test);
        self.rows.push(bytes);
        self.draws.push(low(mix(key)));
        if self.values.flag_names.values().len() > known {
            self.keep_flag_names(facts.flags);
        }
    }

    /// Number of builds held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether it holds no build.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Memory of its builds in bytes, without the vocabulary of all values seen.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let labels = self.types.iter().map(|labels| labels.train.len() + labels.test.len()).sum::<usize>();
        self.rows.bytes() + self.draws.len() * size_of::<u32>() + labels * size_of::<Label>()
    }

    fn labels(&mut self, executor_type: &str) -> Option<&mut TypeLabels> {
        let found = self.types.iter().position(|labels| labels.executor_type == executor_type);
        let place = match found {
            Some(place) => place,
            None if self.types.len() >= MOST_TYPES => return None,
            None => {
                let executor_type = executor_type.to_owned();
                self.types.push(TypeLabels { executor_type, train: Vec::new(), test: Vec::new() });
                self.types.len() - 1
            }
        };
        self.types.get_mut(place)
    }

    fn keep_flag_names(&mut self, flags: &[String]) {
        for name in flags.iter().map(|flag| flag_name(flag)) {
            if self.flag_names.len() < MOST_NAMES && name.len() <= LONGEST_NAME {
                self.flag_names.entry(Kind::FlagName.hash(name)).or_insert_with(|| name.to_owned());
            }
        }
    }

    /// Names of flags, with their hashes.
    pub(crate) fn flag_names(&self) -> impl Iterator<Item = (u64, &str)> {
        self.flag_names.iter().map(|(&hash, name)| (hash, name.as_str()))
    }

    pub(crate) fn types(&self) -> &[TypeLabels] {
        &self.types
    }

    pub(crate) const fn values(&self) -> &Interners {
        &self.values
    }

    pub(crate) fn row(&self, row: u32) -> &[u8] {
        self.rows.row(row)
    }

    pub(crate) fn draw(&self, row: u32) -> u32 {
        self.draws.get(to_index(row)).copied().present("the draw of a row")
    }
}
