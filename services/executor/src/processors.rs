//! The processors of this machine that the executor may use, as Linux describes them.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use nix::{
    sched::{CpuSet, sched_getaffinity},
    unistd::Pid,
};
use policy::{CoreSharing, Processor, core_sets, memory_nodes};
use sandbox::Cores;
use service::ServiceError;
use settings::{ExecutorSettings, SlotCores};

/// Where Linux describes processors.
pub(crate) const SYSTEM: &str = "/sys/devices/system/cpu";

/// Where Linux says which NUMA nodes have memory.
const NODES_WITH_MEMORY: &str = "/sys/devices/system/node/has_memory";

/// The processors and the memory of each slot; `None` if all slots share all processors.
///
/// Fails if there are fewer physical cores than slots.
pub(crate) fn of_slots(settings: &ExecutorSettings) -> Result<Option<Vec<Cores>>, ServiceError> {
    let sharing = match settings.slot_cores {
        SlotCores::Shared => return Ok(None),
        SlotCores::Own => CoreSharing::OneThread,
        SlotCores::OwnWithSiblings => CoreSharing::AllThreads,
    };
    let usable = sched_getaffinity(Pid::from_raw(0))
        .map_err(|error| ServiceError::failed("finding the processors that may be used", error))?;
    let is_usable = |id: u16| usable.is_set(usize::from(id)).unwrap_or(false);
    let most = u16::try_from(CpuSet::count()).unwrap_or(u16::MAX);
    let processors: Vec<Processor> =
        (0..most).filter(|id| is_usable(*id)).map(|id| processor(Path::new(SYSTEM), id)).collect();
    let sets = core_sets(&processors, usize::from(settings.slots), sharing).map_err(|error| {
        let advice = "start fewer slots (executor_slots), or let them share the cores (slot_cores)";
        ServiceError::failed("the setting slot_cores", format!("{error}: {advice}"))
    })?;
    // A kernel without NUMA has no such file, and one node.
    let nodes = fs::read_to_string(NODES_WITH_MEMORY).map(|text| numbers(&text)).unwrap_or_default();
    let cores = |owned: Vec<u16>| {
        let nodes = memory_nodes(&processors, &owned, &nodes);
        Cores {
            memory_nodes: nodes.into_iter().filter_map(|node| node.try_into().ok()).collect(),
            processors: owned,
        }
    };
    Ok(Some(sets.into_iter().map(cores).collect()))
}

/// The numbers in a list such as `0-3,8`.
fn numbers(list: &str) -> BTreeSet<u32> {
    let range = |text: &str| {
        let (from, to) = text.split_once('-').unwrap_or((text, text));
        Some(from.parse::<u32>().ok()?..=to.parse::<u32>().ok()?)
    };
    list.trim().split(',').filter_map(range).flatten().collect()
}

/// One processor. What the system does not say counts as its own.
fn processor(system: &Path, id: u16) -> Processor {
    let folder = system.join(format!("cpu{id}"));
    let number = |path: PathBuf| fs::read_to_string(path).ok()?.trim().parse::<u32>().ok();
    let topology = |name: &str| number(folder.join("topology").join(name));
    let package = topology("physical_package_id").unwrap_or_default();
    // Numbers of cores are those of their package.
    let core = topology("core_id").map_or(u32::from(id), |core| (package << 16) | (core & 0xffff));
    let caches = (0..10).rev().map(|index| folder.join(format!("cache/index{index}")));
    let cache = caches.into_iter().find_map(|cache| first_of(&cache.join("shared_cpu_list")));
    let node = (0..1024).find(|node| folder.join(format!("node{node}")).exists());
    Processor { node: node.unwrap_or(package), cache: cache.unwrap_or(package), core, id }
}

/// The first number of the list in a file.
fn first_of(path: &Path) -> Option<u32> {
    numbers(&fs::read_to_string(path).ok()?).first().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_of_numbers_and_ranges() {
        assert_eq!(Vec::from_iter(numbers("0-2,7\n")), [0, 1, 2, 7]);
        assert_eq!(Vec::from_iter(numbers("3")), [3]);
        assert!(numbers("\n").is_empty() && numbers("x-2").is_empty());
    }

    #[test]
    fn a_processor_is_what_its_folder_says() {
        let system = tempfile::tempdir().unwrap();
        let folder = system.path().join("cpu9");
        for (name, content) in [
            ("topology/physical_package_id", "1\n"),
            ("topology/core_id", "4\n"),
            ("cache/index0/shared_cpu_list", "9\n"),
            ("cache/index3/shared_cpu_list", "5-9,25-29\n"),
            ("node1/x", ""),
        ] {
            let path = folder.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        let expected = Processor { node: 1, cache: 5, core: (1 << 16) | 4, id: 9 };
        assert_eq!(processor(system.path(), 9), expected);
        // A machine that describes nothing, as some containers.
        assert_eq!(processor(system.path(), 3), Processor { node: 0, cache: 0, core: 3, id: 3 });
    }
}
