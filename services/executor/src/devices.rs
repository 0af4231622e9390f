//! Devices of the machine that actions get for themselves, for example graphics processors: which are free, and what an
//! action that has some sees.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::FileTypeExt as _,
    path::PathBuf,
};

use model::{Amount, ResourceName};
use parking_lot::Mutex;
use service::ServiceError;

/// All devices of an executor by resource, each with its nodes.
type Nodes = BTreeMap<ResourceName, Vec<Vec<PathBuf>>>;
/// Amounts of custom resources.
type Amounts = BTreeMap<ResourceName, Amount>;

/// The devices that an action has: their positions in the setting, by resource.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Assigned(BTreeMap<ResourceName, BTreeSet<usize>>);

/// Why an action gets no devices.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unassigned {
    #[error(
        "resources:{resource} = {amount} asks for a part of a device, but executors give only whole ones \
         (executor_devices): ask for a whole number"
    )]
    Part { resource: ResourceName, amount: Amount },
    #[error("no device of {resource} is free: earlier actions have processes that do not die")]
    Busy { resource: ResourceName },
}

/// The free devices of an executor. Only sets and numbers.
#[derive(Debug)]
struct FreeDevices(BTreeMap<ResourceName, BTreeSet<usize>>);

impl FreeDevices {
    fn new(counts: impl Iterator<Item = (ResourceName, usize)>) -> Self {
        Self(counts.map(|(resource, count)| (resource, (0..count).collect())).collect())
    }

    /// The first free devices for an action that asks for these amounts: all of them or none. Resources that have no
    /// devices are only numbers, and are not assigned.
    fn assign(&mut self, asked: &Amounts) -> Result<Assigned, Unassigned> {
        let mut chosen = BTreeMap::new();
        for (resource, free) in &self.0 {
            let amount = asked.get(resource).copied().unwrap_or_default();
            let Some(count) = whole(amount) else {
                return Err(Unassigned::Part { resource: resource.clone(), amount });
            };
            let first: BTreeSet<usize> = free.iter().copied().take(count).collect();
            if first.len() < count {
                return Err(Unassigned::Busy { resource: resource.clone() });
            }
            if count > 0 {
                chosen.insert(resource.clone(), first);
            }
        }
        for (resource, chosen) in &chosen {
            if let Some(free) = self.0.get_mut(resource) {
                free.retain(|position| !chosen.contains(position));
            }
        }
        Ok(Assigned(chosen))
    }

    fn release(&mut self, assigned: Assigned) {
        for (resource, positions) in assigned.0 {
            self.0.entry(resource).or_default().extend(positions);
        }
    }
}

/// A whole number of devices; `None` for a fraction.
fn whole(amount: Amount) -> Option<usize> {
    let one = Amount::whole(1).micros();
    amount.micros().is_multiple_of(one).then(|| usize::try_from(amount.micros() / one).unwrap_or(usize::MAX))
}

/// The devices of an executor.
#[derive(Debug)]
pub(crate) struct Devices {
    nodes: Nodes,
    variables: BTreeMap<ResourceName, String>,
    /// Whether actions see only their own devices.
    sandboxed: bool,
    free: Mutex<FreeDevices>,
}

impl Devices {
    /// All of them are free. Fails if a node is missing.
    pub(crate) fn new(
        nodes: Nodes,
        variables: BTreeMap<ResourceName, String>,
        sandboxed: bool,
    ) -> Result<Self, ServiceError> {
        for (resource, node) in
            nodes.iter().flat_map(|(name, all)| all.iter().flatten().map(move |it| (name, it)))
        {
            let what = || format!("finding {} of {resource} (see executor_devices)", node.display());
            let kind = fs::metadata(node).map_err(|error| ServiceError::failed(what(), error))?.file_type();
            if !kind.is_char_device() && !kind.is_block_device() {
                return Err(ServiceError::failed(what(), "it is not a device"));
            }
        }
        let counts = nodes.iter().map(|(resource, all)| (resource.clone(), all.len()));
        let free = Mutex::new(FreeDevices::new(counts));
        Ok(Self { nodes, variables, sandboxed, free })
    }

    /// Assigns devices to an action that asks for these amounts.
    pub(crate) fn assign(&self, asked: &Amounts) -> Result<Assigned, Unassigned> {
        self.free.lock().assign(asked)
    }

    /// Frees the devices of an action whose processes are all dead.
    pub(crate) fn release(&self, assigned: Assigned) {
        self.free.lock().release(assigned);
    }

    /// The nodes of these devices, each once.
    pub(crate) fn nodes(&self, assigned: &Assigned) -> Vec<PathBuf> {
        let of = |(resource, positions): (&ResourceName, &BTreeSet<usize>)| {
            let all = self.nodes.get(resource).map(Vec::as_slice).unwrap_or_default();
            positions.iter().filter_map(|position| all.get(*position)).flatten().cloned().collect::<Vec<_>>()
        };
        let nodes: BTreeSet<PathBuf> = assigned.0.iter().flat_map(of).collect();
        nodes.into_iter().collect()
    }

    /// Adds the variables with the numbers of these devices to an environment. In a sandbox, which shows no others, programs
    /// count their devices from 0; elsewhere the numbers are the positions in the setting.
    pub(crate) fn put_variables(&self, assigned: &Assigned, environment: &mut Vec<(String, String)>) {
        for (resource, positions) in &assigned.0 {
            let Some(variable) = self.variables.get(resource) else { continue };
            let number = |(index, position): (usize, &usize)| if self.sandboxed { index } else { *position };
            let numbers: Vec<String> =
                positions.iter().enumerate().map(|it| number(it).to_string()).collect();
            environment.retain(|(name, _)| name != variable);
            environment.push((variable.clone(), numbers.join(",")));
        }
    }
}

impl Assigned {
    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether there are devices of this resource.
    pub(crate) fn has(&self, resource: &ResourceName) -> bool {
        self.0.contains_key(resource)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn named(name: &str) -> ResourceName {
        name.parse().unwrap()
    }

    fn amounts(amounts: &[(&str, &str)]) -> Amounts {
        amounts.iter().map(|(name, amount)| (named(name), amount.parse().unwrap())).collect()
    }

    fn devices(sandboxed: bool) -> Devices {
        let gpus = [["/dev/null", "/dev/zero"], ["/dev/full", "/dev/zero"]];
        let gpus = gpus.map(|nodes| nodes.map(PathBuf::from).to_vec()).to_vec();
        let variables = [(named("gpu"), "GPUS".to_owned())].into();
        Devices::new([(named("gpu"), gpus)].into(), variables, sandboxed).unwrap()
    }

    #[test]
    fn an_action_sees_the_nodes_of_its_devices_and_counts_what_it_sees() {
        for (sandboxed, number) in [(true, "0"), (false, "1")] {
            let devices = devices(sandboxed);
            let first = devices.assign(&amounts(&[("gpu", "1"), ("licence", "0.5")])).unwrap();
            let second = devices.assign(&amounts(&[("gpu", "1")])).unwrap();
            let nodes = devices.nodes(&second);
            assert_eq!(nodes, [PathBuf::from("/dev/full"), "/dev/zero".into()]);
            let mut environment = vec![("GPUS".to_owned(), "7".to_owned()), ("A".to_owned(), "B".to_owned())];
            devices.put_variables(&second, &mut environment);
            let wanted =
                [("A", "B"), ("GPUS", number)].map(|(name, value)| (name.to_owned(), value.to_owned()));
            assert_eq!(environment, wanted);
            assert!(first.has(&named("gpu")) && !first.has(&named("licence")));
            devices.release(first);
            devices.release(second);
            let both = devices.assign(&amounts(&[("gpu", "2")])).unwrap();
            let mut environment = Vec::new();
            devices.put_variables(&both, &mut environment);
            assert_eq!(environment, [("GPUS".to_owned(), "0,1".to_owned())]);
        }
    }

    #[test]
    fn a_part_of_a_device_and_more_than_there_are_is_refused_by_name() {
        let devices = devices(true);
        let part = devices.assign(&amounts(&[("gpu", "0.5")])).unwrap_err().to_string();
        assert!(part.contains("resources:gpu = 0.5") && part.contains("executor_devices"), "{part}");
        assert_eq!(
            devices.assign(&amounts(&[("gpu", "3")])),
            Err(Unassigned::Busy { resource: named("gpu") })
        );
        assert!(devices.assign(&amounts(&[("gpu", "0")])).unwrap().is_empty());
    }

    #[test]
    fn a_missing_node_and_a_file_are_refused_with_the_setting() {
        for node in ["/dev/no-such-node", "/etc/passwd"] {
            let nodes = [(named("gpu"), vec![vec![PathBuf::from(node)]])].into();
            let error = telemetry::error_chain(&Devices::new(nodes, BTreeMap::new(), true).unwrap_err());
            assert!(error.contains(node) && error.contains("executor_devices"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn no_device_has_two_actions_and_all_return(
            counts in prop::array::uniform2(0_usize..5),
            steps in prop::collection::vec((prop::array::uniform2(0_u32..4), any::<prop::sample::Index>(), any::<bool>()), 0..40),
        ) {
            let names = ["gpu", "board"].map(named);
            let new = || FreeDevices::new(names.iter().cloned().zip(counts));
            let mut free = new();
            let mut held: Vec<Assigned> = Vec::new();
            for (asked, which, ends) in steps {
                if ends && !held.is_empty() {
                    free.release(held.swap_remove(which.index(held.len())));
                    continue;
                }
                let asked: Amounts = names.iter().cloned().zip(asked.map(Amount::whole)).collect();
                let left = |name: &ResourceName| free.0[name].len();
                let fits = asked.iter().all(|(name, amount)| whole(*amount).unwrap() <= left(name));
                let before = free.0.clone();
                let assigned = free.assign(&asked);
                prop_assert_eq!(assigned.is_ok(), fits);
                let Ok(assigned) = assigned else {
                    prop_assert_eq!(&free.0, &before, "some were assigned to an action that got not all");
                    continue;
                };
                for (name, amount) in &asked {
                    let got = assigned.0.get(name).cloned().unwrap_or_default();
                    prop_assert_eq!(got.len(), whole(*amount).unwrap());
                    let others = held.iter().filter_map(|other| other.0.get(name));
                    prop_assert!(others.flatten().all(|position| !got.contains(position)));
                }
                held.push(assigned);
            }
            for assigned in held {
                free.release(assigned);
            }
            prop_assert_eq!(free.0, new().0);
        }
    }
}
