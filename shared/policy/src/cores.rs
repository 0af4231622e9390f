//! Which processors of a machine each slot of an executor owns, so that measured times depend on nothing that runs beside
//! them (thesis, sections 2.2 and 2.5).

use std::collections::{BTreeMap, BTreeSet};

/// The property and value by which executors offer that each action has physical cores for itself.
pub const CORES_OFFER: (&str, &str) = ("cores", "own");

/// A processor as the system numbers it: one thread of a physical core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Processor {
    /// Memory node that it is nearest to.
    pub node: u32,
    /// Its last-level cache: the same for all that share one.
    pub cache: u32,
    /// Its physical core: the same for all threads of one.
    pub core: u32,
    /// Number of the processor.
    pub id: u16,
}

/// Whether the slots of an executor share the processors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CoreSharing {
    /// Each slot owns physical cores. Further threads of these cores stay unused: they would share its arithmetic units.
    OneThread,
    /// Each slot owns physical cores with all of their threads.
    AllThreads,
}

/// There are not enough physical cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{slots} slots cannot own cores of a machine with {cores} physical cores")]
pub struct TooFewCores {
    pub slots: usize,
    pub cores: usize,
}

/// The processors of each of `slots` slots: disjoint, of the same number of physical cores, and of one last-level cache
/// each if the machine has room for that. Processors that are left over belong to no slot.
pub fn core_sets(
    processors: &[Processor],
    slots: usize,
    sharing: CoreSharing,
) -> Result<Vec<Vec<u16>>, TooFewCores> {
    let mut cores: BTreeMap<(u32, u32, u32), Vec<u16>> = BTreeMap::new();
    for Processor { node, cache, core, id } in processors {
        cores.entry((*node, *cache, *core)).or_default().push(*id);
    }
    for threads in cores.values_mut() {
        threads.sort_unstable();
        threads.dedup();
        if sharing == CoreSharing::OneThread {
            threads.truncate(1);
        }
    }
    let count = cores.len();
    let each = count.checked_div(slots).unwrap_or_default();
    if each == 0 {
        return Err(TooFewCores { slots, cores: count });
    }
    let mut by_cache: BTreeMap<(u32, u32), Vec<Vec<u16>>> = BTreeMap::new();
    for ((node, cache, _), threads) in cores {
        by_cache.entry((node, cache)).or_default().push(threads);
    }
    let aligned: usize = by_cache.values().map(|cores| cores.len() / each).sum();
    let chunks: Vec<Vec<u16>> = if aligned >= slots {
        by_cache.values().flat_map(|cores| cores.chunks_exact(each)).map(<[_]>::concat).collect()
    } else {
        let all: Vec<Vec<u16>> = by_cache.into_values().flatten().collect();
        all.chunks_exact(each).map(<[_]>::concat).collect()
    };
    Ok(chunks.into_iter().take(slots).collect())
}

/// The memory nodes of the processors `owned`, to which a slot is bound, of a machine with memory in the nodes `existing`.
/// Empty if there is nothing to choose, or if one of the processors has no memory of its own: then all memory is used.
pub fn memory_nodes(processors: &[Processor], owned: &[u16], existing: &BTreeSet<u32>) -> BTreeSet<u32> {
    let nodes: BTreeSet<u32> =
        processors.iter().filter(|one| owned.contains(&one.id)).map(|one| one.node).collect();
    if existing.len() < 2 || !nodes.is_subset(existing) { BTreeSet::new() } else { nodes }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A machine with this many nodes, caches of a node, cores of a cache, and threads of a core. Threads are numbered as
    /// Linux does: first one of each core.
    fn machine(nodes: u32, caches: u32, cores: u32, threads: u32) -> Vec<Processor> {
        let all = nodes * caches * cores;
        let of = |number: u32| {
            let core = number % all;
            let cache = core / cores;
            Processor { node: cache / caches, cache, core, id: u16::try_from(number).unwrap() }
        };
        (0..all * threads).map(of).collect()
    }

    #[test]
    fn slots_own_whole_cores_of_one_cache() {
        let server = machine(2, 1, 10, 2);
        let sets = core_sets(&server, 4, CoreSharing::OneThread).unwrap();
        assert_eq!(sets, [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11, 12, 13, 14], [15, 16, 17, 18, 19]]);
        let sets = core_sets(&server, 6, CoreSharing::AllThreads).unwrap();
        assert_eq!(sets[0], [0, 20, 1, 21, 2, 22]);
        assert_eq!(sets[3], [10, 30, 11, 31, 12, 32], "the tenth core of the first cache stays unused");
        assert_eq!(core_sets(&machine(1, 1, 2, 1), 2, CoreSharing::OneThread).unwrap(), [[0], [1]]);
        // Three cores each: they fit into no cache of two.
        assert_eq!(
            core_sets(&machine(1, 3, 2, 1), 2, CoreSharing::OneThread).unwrap(),
            [[0, 1, 2], [3, 4, 5]]
        );
        let error = core_sets(&machine(1, 1, 2, 2), 3, CoreSharing::AllThreads).unwrap_err();
        assert_eq!(error, TooFewCores { slots: 3, cores: 2 });
        assert!(core_sets(&[], 1, CoreSharing::OneThread).is_err());
    }

    #[test]
    fn memory_is_that_of_the_nodes_of_the_cores_if_there_is_a_choice() {
        let server = machine(2, 1, 2, 2);
        let nodes = |owned: &[u16], existing: &[u32]| {
            let nodes = memory_nodes(&server, owned, &existing.iter().copied().collect());
            nodes.into_iter().collect::<Vec<u32>>()
        };
        assert_eq!(nodes(&[0, 4], &[0, 1]), [0]);
        assert_eq!(nodes(&[3, 7], &[0, 1]), [1]);
        assert_eq!(nodes(&[1, 2], &[0, 1]), [0, 1]);
        assert!(nodes(&[0], &[0]).is_empty(), "one node");
        assert!(nodes(&[2], &[0, 5]).is_empty(), "a node without memory");
    }

    proptest! {
        #[test]
        fn sets_are_disjoint_and_of_whole_cores(
            (nodes, caches, cores, threads) in (1..3_u32, 1..4_u32, 1..9_u32, 1..3_u32),
            slots in 1..20_usize,
            all in any::<bool>(),
        ) {
            let machine = machine(nodes, caches, cores, threads);
            let sharing = if all { CoreSharing::AllThreads } else { CoreSharing::OneThread };
            let physical = (nodes * caches * cores) as usize;
            let Ok(sets) = core_sets(&machine, slots, sharing) else {
                prop_assert!(slots > physical);
                return Ok(());
            };
            prop_assert_eq!(sets.len(), slots);
            let core_of = |id: &u16| machine.iter().find(|it| it.id == *id).unwrap().core;
            let mut owned = BTreeSet::new();
            for set in &sets {
                let own: BTreeSet<u32> = set.iter().map(core_of).collect();
                prop_assert_eq!(own.len(), physical / slots);
                prop_assert_eq!(set.len(), own.len() * if all { threads as usize } else { 1 });
                for core in own {
                    prop_assert!(owned.insert(core), "core {} has two owners", core);
                }
            }
        }
    }
}
