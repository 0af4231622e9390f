//! Decides whether any pool can ever run what an action asks for, and which pool does.

use std::{cmp::Reverse, collections::BTreeSet, fmt::Write as _};

use model::{Amount, Needs, Pool, PoolName, ResourceName};

use crate::requirements::value_matches;

use super::size::{CPU_PROPERTY, MEMORY_PROPERTY, RESOURCE_PREFIX, Shortage, wanted};

/// Name of the pool that an action without requirements goes to, if a pool of this name exists.
pub const DEFAULT_POOL: &str = "default";
/// The property that asks for a pool by name. Every pool offers it.
pub const POOL_PROPERTY: &str = "Pool";
/// Properties whose values are compared without regard to case.
const CASELESS: [&str; 4] = [POOL_PROPERTY, "OSFamily", "Arch", "ISA"];
/// Maximum number of characters of a client's text that a message repeats.
const SHOWN: usize = 200;

/// Why an action is not admitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdmitError {
    /// No executor has ever registered a pool, so it is unknown what the farm can run. Reported as `UNAVAILABLE`.
    NothingRegistered,
    /// No pool can ever run it. Reported as `FAILED_PRECONDITION`.
    Refused(Refusal),
}

/// A requirement that no pool can ever meet, and the values that could be requested instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Name of the property that cannot be met.
    pub property: String,
    /// Value that was requested.
    pub value: String,
    /// Values offered by the pools that match everything else, sorted; for a property that no pool knows, the names
    /// of the known properties.
    pub offered: Vec<String>,
    /// The refusal as a sentence for the client.
    pub message: String,
}

impl std::fmt::Display for AdmitError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NothingRegistered => {
                f.write_str("no executor has registered a pool yet: start an executor or retry later")
            }
            Self::Refused(refusal) => f.write_str(&refusal.message),
        }
    }
}

impl std::error::Error for AdmitError {}

/// A property and the requested value.
type RequestedProperty = (String, String);

/// One requirement, which a pool meets or does not meet.
#[derive(Clone, Copy)]
enum Requirement<'a> {
    Property(&'a RequestedProperty),
    Size(Shortage<'a>),
}

/// Chooses the pool for an action that asks for `platform`, which are the properties without those that state its size,
/// and for `needs`. The pool must offer every requested value, as matched by [`requirements`](crate::requirements), and
/// its largest executor must have everything that the action needs. See [`super::read_needs`].
///
/// Among several pools, one with live executors (`lives`) goes before one without. Then the one that offers the fewest
/// properties and resources, so that special executors stay free for actions that need them; then the pool named
/// [`DEFAULT_POOL`], then the first by name. An action that asks for no property goes to [`DEFAULT_POOL`] before
/// others, if it can run it.
///
/// A pool where the input root is an action's `/` is only for actions that ask for it, see [`is_requested`].
pub fn admit(
    platform: &[RequestedProperty],
    needs: &Needs,
    pools: &[Pool],
    lives: impl Fn(&PoolName) -> bool,
) -> Result<PoolName, AdmitError> {
    if pools.is_empty() {
        return Err(AdmitError::NothingRegistered);
    }
    let requirements: Vec<Requirement<'_>> =
        platform.iter().map(Requirement::Property).chain(wanted(needs).map(Requirement::Size)).collect();
    let order = |pool: &&Pool| {
        let is_default = pool.name.as_str() == DEFAULT_POOL;
        let special = pool.properties.len() + pool.capacity.custom.len();
        (Reverse(lives(&pool.name)), Reverse(is_default && platform.is_empty()), special, Reverse(is_default))
    };
    let fits =
        || pools.iter().filter(|pool| requirements.iter().all(|requirement| requirement.is_met_by(pool)));
    let candidates = fits().filter(|pool| is_requested(pool, platform, pools));
    match candidates.min_by(|a, b| order(a).cmp(&order(b)).then_with(|| a.name.cmp(&b.name))) {
        Some(pool) => Ok(pool.name.clone()),
        None if fits().next().is_some() => Err(AdmitError::Refused(not_requested(fits()))),
        None => Err(AdmitError::Refused(refusal(&requirements, pools))),
    }
}

/// Whether an action may go to `pool`. Where the input root is an action's `/`, nothing of the machine is visible,
/// not even a shell: only actions that ask for such a pool are sent to it, by its name or by a value that no other
/// kind of pool offers.
fn is_requested(pool: &Pool, platform: &[RequestedProperty], pools: &[Pool]) -> bool {
    let ordinary = || pools.iter().filter(|pool| !pool.root_is_input);
    let requests_pool = |asked: &RequestedProperty| {
        asked.0 == POOL_PROPERTY || !ordinary().any(|pool| Requirement::Property(asked).is_met_by(pool))
    };
    !pool.root_is_input || platform.iter().any(requests_pool)
}

/// The refusal of an action that only pools can run that it did not ask for.
fn not_requested<'a>(fits: impl Iterator<Item = &'a Pool>) -> Refusal {
    let mut offered: Vec<String> = fits.map(|pool| pool.name.to_string()).collect();
    offered.sort();
    let message = format!(
        "only pools that mount the input root as / can run this action, and they must be requested by name \
         ({POOL_PROPERTY}); available: {}",
        list(&offered)
    );
    Refusal { property: POOL_PROPERTY.to_owned(), value: String::new(), offered, message }
}

impl Requirement<'_> {
    fn is_met_by(self, pool: &Pool) -> bool {
        match self {
            Self::Property((name, value)) => {
                if CASELESS.contains(&name.as_str()) {
                    return values(pool, name).any(|on_offer| on_offer.eq_ignore_ascii_case(value));
                }
                value_matches(name, value, values(pool, name))
            }
            Self::Size(size) => !size.is_short(&pool.capacity),
        }
    }

    fn property(self) -> String {
        match self {
            Self::Property((name, _)) => name.clone(),
            Self::Size(Shortage::Cpu(_)) => CPU_PROPERTY.to_owned(),
            Self::Size(Shortage::Memory(_)) => MEMORY_PROPERTY.to_owned(),
            Self::Size(Shortage::Custom(name, _)) => format!("{RESOURCE_PREFIX}{name}"),
        }
    }

    fn value(self) -> String {
        match self {
            Self::Property((_, value)) => value.clone(),
            Self::Size(Shortage::Cpu(millis)) => processors(millis),
            // Requested amounts are rounded up and available amounts down, so that the two never look the same.
            Self::Size(Shortage::Memory(bytes)) => memory(bytes, u64::div_ceil),
            Self::Size(Shortage::Custom(_, amount)) => amount.to_string(),
        }
    }

    /// What `pools` offer of it, sorted: values of the property, or the largest amount that any of their executors has.
    fn offered(self, pools: &[&Pool]) -> Vec<String> {
        let most = |of: &dyn Fn(&Pool) -> u64| pools.iter().map(|pool| of(pool)).max();
        let offered = match self {
            Self::Property((name, _)) => {
                let all: BTreeSet<&str> = pools.iter().flat_map(|pool| values(pool, name)).collect();
                return all.into_iter().map(str::to_owned).collect();
            }
            Self::Size(Shortage::Cpu(_)) => most(&|pool| pool.capacity.cpu_millis).map(processors),
            Self::Size(Shortage::Memory(_)) => most(&|pool| pool.capacity.memory_bytes)
                .map(|bytes| memory(bytes, |bytes, unit| bytes / unit)),
            Self::Size(Shortage::Custom(name, _)) => most(&|pool| pool.capacity.custom(name).micros())
                .map(|micros| Amount::of_micros(micros).to_string()),
        };
        offered.into_iter().collect()
    }

    /// The requirement for a message, such as `Arch = "arm64"`.
    fn shown(self) -> String {
        format!("{} = {:?}", shortened(&self.property()), shortened(&self.value()))
    }
}

/// The values that `pool` offers for the property `name`.
fn values<'a>(pool: &'a Pool, name: &str) -> impl Iterator<Item = &'a str> + use<'a> {
    let own = (name == POOL_PROPERTY).then(|| pool.name.as_str());
    own.into_iter().chain(pool.properties.get(name).into_iter().flatten().map(String::as_str))
}

/// Chooses the requirement to report. The caller knows that no pool meets all of them.
fn refusal(requirements: &[Requirement<'_>], pools: &[Pool]) -> Refusal {
    if let Some(refusal) = unknown(requirements, pools) {
        return refusal;
    }
    let (at, candidates) = blocking_requirement(requirements, pools);
    let Some(blamed) = requirements.get(at).copied() else {
        let message = "no pool can run the action".to_owned();
        return Refusal { property: String::new(), value: String::new(), offered: Vec::new(), message };
    };
    let everywhere = blamed.offered(&pools.iter().collect::<Vec<_>>());
    let here = blamed.offered(&candidates);
    let (whose, most) = match blamed {
        Requirement::Property(_) => ("no pool offers", ""),
        Requirement::Size(_) => ("no pool has an executor with", " at most"),
    };
    let mut message = format!("{whose} {}", blamed.shown());
    // If another pool offers it, only the combination is unavailable.
    let others: Vec<String> = requirements
        .iter()
        .enumerate()
        .filter(|(index, _)| *index != at)
        .map(|(_, requirement)| requirement.shown())
        .collect();
    if !others.is_empty() && here != everywhere {
        // Writing to a `String` cannot fail.
        let _ = write!(message, " together with {}", list(&others));
    }
    let offered = if here.is_empty() { everywhere } else { here };
    // Writing to a `String` cannot fail.
    let _ = write!(message, "; available{most}: {}", list(&offered));
    Refusal { property: blamed.property(), value: blamed.value(), offered, message }
}

/// The refusal of a property or a custom resource that no pool knows, with the known ones.
fn unknown(requirements: &[Requirement<'_>], pools: &[Pool]) -> Option<Refusal> {
    let properties: BTreeSet<&str> = pools
        .iter()
        .flat_map(|pool| pool.properties.keys().map(String::as_str))
        .chain([POOL_PROPERTY])
        .collect();
    let resources: BTreeSet<&ResourceName> =
        pools.iter().flat_map(|pool| pool.capacity.custom.keys()).collect();
    let found = requirements.iter().find_map(|requirement| match requirement {
        Requirement::Property((name, _)) if !properties.contains(name.as_str()) => {
            let known = properties.iter().map(|name| (*name).to_owned()).collect();
            Some((*requirement, "platform property", known))
        }
        Requirement::Size(Shortage::Custom(name, _))
            if !resources.contains(name) && !pools.iter().any(|pool| requirement.is_met_by(pool)) =>
        {
            let known = resources.iter().map(|name| format!("{RESOURCE_PREFIX}{name}")).collect();
            Some((*requirement, "resource", known))
        }
        Requirement::Property(_) | Requirement::Size(_) => None,
    });
    let (requirement, what, offered): (Requirement<'_>, _, Vec<String>) = found?;
    let message = format!(
        "no pool knows the {what} {:?} (requested with value {:?}); known: {}",
        shortened(&requirement.property()),
        shortened(&requirement.value()),
        list(&offered)
    );
    Some(Refusal { property: requirement.property(), value: requirement.value(), offered, message })
}

/// The first requirement that alone rules out all pools, and the pools that meet the rest and offer another
/// value. If no single requirement does, the first one that leaves no pool when they are applied in order, and
/// the pools before it.
fn blocking_requirement<'a>(requirements: &[Requirement<'_>], pools: &'a [Pool]) -> (usize, Vec<&'a Pool>) {
    let meets_rest = |at: usize| -> Vec<&Pool> {
        let rest = || requirements.iter().enumerate().filter(|(index, _)| *index != at);
        pools.iter().filter(|pool| rest().all(|(_, requirement)| requirement.is_met_by(pool))).collect()
    };
    let nowhere =
        requirements.iter().position(|requirement| !pools.iter().any(|pool| requirement.is_met_by(pool)));
    if let Some(at) = nowhere {
        return (at, meets_rest(at));
    }
    let mut alone: Vec<(usize, Vec<&Pool>)> =
        (0..requirements.len()).map(|at| (at, meets_rest(at))).collect();
    alone.retain(|(_, pools)| !pools.is_empty());
    // A requirement with alternatives makes a more helpful message.
    let helps = |(at, pools): &(usize, Vec<&Pool>)| {
        requirements.get(*at).is_some_and(|requirement| !requirement.offered(pools).is_empty())
    };
    // If none has alternatives, the first one; there may be none at all.
    let best = alone.iter().position(helps).unwrap_or_default();
    if best < alone.len() {
        return alone.swap_remove(best);
    }
    let mut left: Vec<&Pool> = pools.iter().collect();
    for (at, requirement) in requirements.iter().enumerate() {
        let next: Vec<&Pool> = left.iter().copied().filter(|pool| requirement.is_met_by(pool)).collect();
        if next.is_empty() {
            return (at, left);
        }
        left = next;
    }
    (0, left)
}

/// A number of processors for a message, such as `2.5`.
fn processors(millis: u64) -> String {
    (millis as f64 / 1000.0).to_string()
}

/// An amount of memory for a message, such as `1.5GiB` or `300MiB`, in hundredths that `divide` rounds. It is a
/// valid value of [`MEMORY_PROPERTY`].
fn memory(bytes: u64, divide: impl Fn(u64, u64) -> u64) -> String {
    const HUNDREDTHS: u64 = 100;
    let (unit, name) = if bytes < 1 << 30 { (1 << 20, "MiB") } else { (1 << 30, "GiB") };
    format!("{}{name}", divide(bytes.saturating_mul(HUNDREDTHS), unit) as f64 / HUNDREDTHS as f64)
}

fn list(texts: &[String]) -> String {
    if texts.is_empty() { "nothing".to_owned() } else { texts.join(", ") }
}

fn shortened(text: &str) -> String {
    text.chars().take(SHOWN).collect()
}

#[cfg(test)]
mod tests;
