//! Helpers shared by the tests.

pub(crate) mod workload;

use occupancy::{BuildFacts, Dataset};
use workload::{Build, Workload};

/// The facts about the build before it runs.
pub(crate) fn facts(build: &Build) -> BuildFacts<'_> {
    BuildFacts {
        command: build.command,
        flags: &build.flags,
        targets: &build.targets,
        group: &build.group,
        priority: build.priority,
    }
}

/// A dataset of this number of generated builds.
pub(crate) fn dataset(builds: usize, seed: u64) -> Dataset {
    let mut workload = Workload::new(seed);
    let mut data = Dataset::new();
    for _ in 0..builds {
        let build = workload.next_build();
        data.push(&facts(&build), build.usage.iter().copied(), build.key);
    }
    data
}
