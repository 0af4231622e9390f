use crate::hash::hash;
use crate::number::count;
use invariant::Present as _;

/// Facts about a build before it runs, as far as the model uses them (section 4.3 of the paper). The order of flags and
/// targets does not matter, and neither do duplicates.
#[derive(Debug, Clone, Copy)]
pub struct BuildFacts<'a> {
    /// The build tool's command: `build`, `test` and so on.
    pub command: &'a str,
    /// Bazel's flags, each with its value: `--copt=-O2`.
    pub flags: &'a [String],
    /// Full names of the targets: `//path/to/package:target`.
    pub targets: &'a [String],
    /// Quota group that pays for the build.
    pub group: &'a str,
    /// Priority, under the name that the caller always uses.
    pub priority: &'a str,
}

/// Maximum number of targets considered. Of more targets, the model considers a fixed random choice and
/// scales up their sum.
pub(crate) const MOST_TARGETS: usize = 512;
/// Maximum number of flags considered. Of more flags, the model considers a fixed random choice.
pub(crate) const MOST_FLAGS: usize = 256;

/// A kind of value with a separate vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Command,
    Flag,
    FlagName,
    Target,
    Package,
    Group,
    Priority,
}

impl Kind {
    /// Hash of `text` as a value of this kind.
    pub(crate) fn hash(self, text: &str) -> u64 {
        hash(self as u64 + 1, text.as_bytes())
    }
}

/// A build's facts as hashes, sorted and without duplicates. Reused between builds to save allocations.
#[derive(Debug, Default)]
pub(crate) struct Hashed {
    pub(crate) command: u64,
    pub(crate) group: u64,
    pub(crate) priority: u64,
    /// Pairs of the hashes of the name and of the whole flag.
    pub(crate) flags: Vec<(u64, u64)>,
    /// The targets that are considered.
    pub(crate) targets: Vec<u64>,
    /// Packages of the considered targets, with the number of these in each.
    pub(crate) packages: Vec<(u64, u32)>,
    /// Number of targets of the build, whether considered or not.
    pub(crate) target_count: u32,
    pairs: Vec<(u64, u64)>,
}

impl Hashed {
    /// Reads the facts of the next build.
    pub(crate) fn read(&mut self, facts: &BuildFacts<'_>) {
        self.command = Kind::Command.hash(facts.command);
        self.group = Kind::Group.hash(facts.group);
        self.priority = Kind::Priority.hash(facts.priority);
        self.read_flags(facts.flags);
        self.read_targets(facts.targets);
    }

    fn read_flags(&mut self, flags: &[String]) {
        self.flags.clear();
        self.flags
            .extend(flags.iter().map(|flag| (Kind::FlagName.hash(flag_name(flag)), Kind::Flag.hash(flag))));
        self.flags.sort_unstable();
        self.flags.dedup();
        if self.flags.len() > MOST_FLAGS {
            self.flags.sort_unstable_by_key(|&(_, flag)| flag);
            self.flags.truncate(MOST_FLAGS);
        }
    }

    fn read_targets(&mut self, targets: &[String]) {
        self.pairs.clear();
        // Targets of one package mostly follow each other.
        let mut last = ("", Kind::Package.hash(""));
        self.pairs.extend(targets.iter().map(|target| {
            let package = package_of(target);
            if package != last.0 {
                last = (package, Kind::Package.hash(package));
            }
            let rest = target.get(package.len()..).present("a target without its package");
            (hash(last.1 ^ Kind::Target as u64, rest.as_bytes()), last.1)
        }));
        self.pairs.sort_unstable();
        self.pairs.dedup();
        self.target_count = count(self.pairs.len());
        // Sorted by hash, the first ones are a random choice, and the hash of one target does not depend on
        // the others.
        self.pairs.truncate(MOST_TARGETS);
        self.targets.clear();
        self.targets.extend(self.pairs.iter().map(|&(target, _)| target));
        self.pairs.sort_unstable_by_key(|&(_, package)| package);
        self.packages.clear();
        for &(_, package) in &self.pairs {
            match self.packages.last_mut() {
                Some((last, targets)) if *last == package => *targets += 1,
                _ => self.packages.push((package, 1)),
            }
        }
    }
}

/// The name of a flag: `--copt` of `--copt=-O2`.
pub(crate) fn flag_name(flag: &str) -> &str {
    flag.split_once('=').map_or(flag, |(name, _)| name)
}

/// The package of a target: `//path/to/package` of `//path/to/package:target`.
pub(crate) fn package_of(target: &str) -> &str {
    target.rsplit_once(':').map_or(target, |(package, _)| package)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::number::to_index;

    fn texts(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|&text| text.to_owned()).collect()
    }

    #[test]
    fn names_and_packages_are_cut_off() {
        assert_eq!(flag_name("--define=a=b"), "--define");
        assert_eq!(flag_name("--nocache"), "--nocache");
        assert_eq!(package_of("//a/b:c"), "//a/b");
        assert_eq!(package_of("//a/b/..."), "//a/b/...");
    }

    #[test]
    fn order_and_repetition_do_not_matter() {
        let (mut one, mut other) = (Hashed::default(), Hashed::default());
        let take = |hashed: &mut Hashed, flags: &[&str], targets: &[&str]| {
            let (flags, targets) = (texts(flags), texts(targets));
            let facts =
                BuildFacts { command: "build", flags: &flags, targets: &targets, group: "g", priority: "p" };
            hashed.read(&facts);
        };
        take(&mut one, &["--a=1", "--b"], &["//x:1", "//x:2", "//y:1"]);
        take(&mut other, &["--b", "--a=1", "--b"], &["//y:1", "//x:2", "//x:1", "//x:2"]);
        assert_eq!(one.flags, other.flags);
        assert_eq!(one.targets, other.targets);
        assert_eq!(one.packages, other.packages);
        assert_eq!((one.target_count, one.packages.len()), (3, 2));
    }

    #[test]
    fn a_build_of_very_many_targets_is_looked_at_in_part() {
        let mut hashed = Hashed::default();
        let targets: Vec<String> = (0..5_000).map(|number| format!("//p{}:{number}", number % 700)).collect();
        hashed.read(&BuildFacts { command: "", flags: &targets, targets: &targets, group: "", priority: "" });
        assert_eq!((hashed.target_count, hashed.targets.len()), (5_000, MOST_TARGETS));
        assert_eq!(hashed.flags.len(), MOST_FLAGS);
        assert_eq!(hashed.packages.iter().map(|&(_, count)| to_index(count)).sum::<usize>(), MOST_TARGETS);
    }
}
