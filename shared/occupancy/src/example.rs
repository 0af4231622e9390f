use invariant::Present as _;

use crate::facts::{Hashed, Kind};
use crate::number::count;
use crate::rows::RowReader;
use crate::slots::ABSENT;
use crate::vocabulary::{SlotTables, Vocabulary};

/// A build as the model sees it: the slots of its values. Reused between builds to save allocations.
#[derive(Debug, Default)]
pub(crate) struct Example {
    pub(crate) command: u32,
    pub(crate) group: u32,
    pub(crate) priority: u32,
    /// Pairs of the name and the whole flag, in ascending order.
    pub(crate) flags: Vec<(u32, u32)>,
    /// Targets that are in the vocabulary.
    pub(crate) targets: Vec<u32>,
    /// Number of targets considered that are not in the vocabulary.
    pub(crate) unknown_targets: u32,
    /// Each package in the vocabulary, with the number of its targets that were considered.
    pub(crate) packages: Vec<(u32, u32)>,
    /// Number of targets, whether considered or not.
    pub(crate) target_count: u32,
    pub(crate) package_count: u32,
    /// Number of targets that each considered one stands for.
    pub(crate) scale: f32,
}

impl Example {
    /// Reads a build of a dataset.
    pub(crate) fn read(&mut self, row: &[u8], slots: &SlotTables) {
        let mut row = RowReader(row);
        self.clear();
        self.command = slots.commands.slot(row.take());
        self.group = slots.groups.slot(row.take());
        self.priority = slots.priorities.slot(row.take());
        self.target_count = row.take();
        let mut id = 0;
        for _ in 0..row.take() {
            id += row.take();
            self.flags.push((slots.flag_names.slot(id), slots.flags.slot(row.take())));
        }
        let looked_at = row.take();
        id = 0;
        for _ in 0..looked_at {
            id += row.take();
            self.add_target(slots.targets.slot(id));
        }
        id = 0;
        self.package_count = row.take();
        for _ in 0..self.package_count {
            id += row.take();
            let targets = row.take();
            self.packages.push((slots.packages.slot(id), targets));
        }
        self.finish(looked_at);
    }

    /// Reads only the group of a build of a dataset.
    pub(crate) fn read_group(row: &[u8], slots: &SlotTables) -> u32 {
        let mut row = RowReader(row);
        row.take();
        slots.groups.slot(row.take())
    }

    /// Reads only the number of targets of a build of a dataset.
    pub(crate) fn read_target_count(row: &[u8]) -> u32 {
        let mut row = RowReader(row);
        for _ in 0..3 {
            row.take();
        }
        row.take()
    }

    /// Looks up the values of a build that is to be predicted.
    pub(crate) fn look_up(&mut self, build: &Hashed, words: &Vocabulary) {
        self.clear();
        self.command = words.slot(Kind::Command, build.command);
        self.group = words.slot(Kind::Group, build.group);
        self.priority = words.slot(Kind::Priority, build.priority);
        self.target_count = build.target_count;
        self.package_count = count(build.packages.len());
        let flags = build.flags.iter();
        self.flags.extend(
            flags.map(|&(name, flag)| (words.slot(Kind::FlagName, name), words.slot(Kind::Flag, flag))),
        );
        self.targets.reserve(build.targets.len());
        for &target in &build.targets {
            self.add_target(words.slot(Kind::Target, target));
        }
        let packages = build.packages.iter();
        self.packages
            .extend(packages.map(|&(package, targets)| (words.slot(Kind::Package, package), targets)));
        self.finish(count(build.targets.len()));
    }

    fn clear(&mut self) {
        self.flags.clear();
        self.targets.clear();
        self.packages.clear();
        self.unknown_targets = 0;
    }

    fn add_target(&mut self, slot: u32) {
        if slot == Kind::Target.unknown() {
            self.unknown_targets += 1;
        } else {
            self.targets.push(slot);
        }
    }

    /// Sorts the known values, and merges the unknown ones into one entry.
    fn finish(&mut self, looked_at: u32) {
        self.flags.sort_unstable();
        let unknown = Kind::Package.unknown();
        let mut others = 0;
        self.packages.retain(|&(slot, targets)| {
            others += if slot == unknown { targets } else { 0 };
            slot != unknown
        });
        if others > 0 {
            self.packages.push((unknown, others));
        }
        self.scale = self.target_count as f32 / looked_at.max(1) as f32;
    }

    /// A hash of all values that the flag of this name has in this build.
    pub(crate) fn flag(&self, name: u32) -> u64 {
        let first = self.flags.partition_point(|&(other, _)| other < name);
        let values = self.flags.get(first..).present("the part of a list after a point in it");
        let mut values =
            values.iter().take_while(|&&(other, _)| other == name).map(|&(_, flag)| u64::from(flag));
        let first = values.next().unwrap_or(u64::from(ABSENT));
        values.fold(first, |all, flag| crate::hash::mix(all).wrapping_add(flag))
    }
}
