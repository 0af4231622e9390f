//! Files of the kernel below a root, which tests replace.

use std::{
    collections::BTreeSet,
    fs,
    io::{ErrorKind, Read as _},
    path::{Path, PathBuf},
};

use crate::style::one_line;

/// A value of the kernel, or why it is unknown.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Reading<T> {
    Known(T),
    /// This machine has no such file.
    Missing,
    /// Why a file cannot be read or understood.
    Unreadable(String),
}

impl<T> Reading<T> {
    /// The value if it is known.
    pub(super) fn known(&self) -> Option<&T> {
        match self {
            Self::Known(value) => Some(value),
            Self::Missing | Self::Unreadable(_) => None,
        }
    }

    /// The reading of `other` if this file is missing.
    pub(super) fn or_else(self, other: impl FnOnce() -> Self) -> Self {
        match self {
            Self::Missing => other(),
            found @ (Self::Known(_) | Self::Unreadable(_)) => found,
        }
    }

    /// Changes a known value by a function.
    pub(super) fn map<U>(self, change: impl FnOnce(T) -> U) -> Reading<U> {
        match self {
            Self::Known(value) => Reading::Known(change(value)),
            Self::Missing => Reading::Missing,
            Self::Unreadable(why) => Reading::Unreadable(why),
        }
    }
}

/// Readings of several files as one. Missing files are left out; one that cannot be read makes all of them unknown.
impl<T> FromIterator<Reading<T>> for Reading<Vec<T>> {
    fn from_iter<I: IntoIterator<Item = Reading<T>>>(readings: I) -> Self {
        let mut values = Vec::new();
        for reading in readings {
            match reading {
                Reading::Known(value) => values.push(value),
                Reading::Missing => {}
                Reading::Unreadable(why) => return Self::Unreadable(why),
            }
        }
        if values.is_empty() { Self::Missing } else { Self::Known(values) }
    }
}

/// Maximum size of a file in bytes. `/proc/cpuinfo` has about 1.5 KB for each processor.
const BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Characters of a file that a message about it shows.
const SHOWN_MAX: usize = 40;

/// The files below `/`, or below another root.
#[derive(Debug)]
pub(super) struct Files {
    root: PathBuf,
}

impl Files {
    /// The files below `root`.
    pub(super) fn below(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// The content of a file without white space at both ends. `path` is relative to the root.
    pub(super) fn text(&self, path: &str) -> Reading<String> {
        let mut bytes = Vec::new();
        let read = fs::File::open(self.root.join(path))
            .and_then(|file| file.take(BYTES_MAX).read_to_end(&mut bytes));
        match read {
            Ok(_) => Reading::Known(String::from_utf8_lossy(&bytes).trim().to_owned()),
            Err(error) if error.kind() == ErrorKind::NotFound => Reading::Missing,
            Err(error) => Reading::Unreadable(format!("/{path}: {error}")),
        }
    }

    /// The value of a file. `parse` returns `None` if it does not understand the content.
    pub(super) fn parsed<T>(&self, path: &str, parse: impl FnOnce(&str) -> Option<T>) -> Reading<T> {
        match self.text(path) {
            Reading::Known(text) => parse(&text).map_or_else(
                || Reading::Unreadable(format!("/{path} contains \"{}\"", one_line(&text, SHOWN_MAX))),
                Reading::Known,
            ),
            Reading::Missing => Reading::Missing,
            Reading::Unreadable(why) => Reading::Unreadable(why),
        }
    }

    /// The numbers of the entries of a folder whose names are `prefix` and a number, such as `cpu0`.
    pub(super) fn numbers(&self, folder: &str, prefix: &str) -> BTreeSet<u32> {
        let Ok(entries) = fs::read_dir(self.root.join(folder)) else { return BTreeSet::new() };
        let names = entries.flatten().map(|entry| entry.file_name());
        names.filter_map(|name| name.to_str()?.strip_prefix(prefix)?.parse().ok()).collect()
    }
}

/// Limit of processor numbers, above that of all kernels. Without it, an invalid list could use up the memory.
const PROCESSORS_MAX: u32 = 65_536;

/// Parses a list of processors of the kernel, such as `0-3,8`. Empty texts are empty lists.
pub(super) fn processor_list(text: &str) -> Option<BTreeSet<u32>> {
    let mut processors = BTreeSet::new();
    for part in text.split(',').filter(|_| !text.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if first > last || last >= PROCESSORS_MAX {
            return None;
        }
        processors.extend(first..=last);
    }
    Some(processors)
}

/// The list of processors as the kernel writes it.
pub(super) fn list_text(processors: &BTreeSet<u32>) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for &number in processors {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            Some(_) | None => ranges.push((number, number)),
        }
    }
    let text = |&(first, last): &(u32, u32)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    ranges.iter().map(text).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_read_and_written() {
        for text in ["", "0", "0-3,8", "1,3,5-6"] {
            assert_eq!(list_text(&processor_list(text).unwrap()), text);
        }
        for text in ["x", "3-1", "0-4294967295", "-1", "1,", "1-2-3"] {
            assert_eq!(processor_list(text), None, "{text}");
        }
    }
}
