//! Decides whether any pool can ever run what an action asks for, and what its executor must offer.

use std::{cmp::Reverse, collections::BTreeSet, fmt::Write as _};

use model::{Amount, Needs, Pool, Requirements, ResourceName};

use super::{image, interaction, network, offers::Offers, services, shared_services::is_of_services};
use crate::requirements::{POOL_PROPERTY, satisfies, value_matches, values};

use super::size::{CPU_PROPERTY, MEMORY_PROPERTY, RESOURCE_PREFIX, Shortage, wanted};

/// Name of the pool whose executors an action without requirements prefers.
pub const DEFAULT_POOL: &str = "default";
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

/// Admits an action that asks for `platform`, which are the properties without those that state its size, and for
/// `needs`; returns what its executor must offer. Some pool must offer every requested value, as matched by
/// [`requirements`](crate::requirements), and its largest executor must have everything that the action needs. See
/// [`super::read_needs`]. An action that only executors could run that left the farm is admitted too, and
/// waits for one of them. Shared services are of no pool: an action that uses them waits until an executor says that they run there.
///
/// A pool where the input root is an action's `/` is only for actions that ask for it, see [`is_requested`].
pub fn admit(
    platform: &[RequestedProperty],
    needs: &Needs,
    offers: &Offers,
) -> Result<Requirements, AdmitError> {
    let pools: Vec<&Pool> = offers.all().collect();
    if pools.is_empty() {
        return Err(AdmitError::NothingRegistered);
    }
    let of_pools: Vec<RequestedProperty> =
        platform.iter().filter(|asked| !is_of_services(asked)).cloned().collect();
    let requirements: Vec<Requirement<'_>> =
        of_pools.iter().map(Requirement::Property).chain(wanted(needs).map(Requirement::Size)).collect();
    let fits = || {
        let meets = |pool: &&&Pool| requirements.iter().all(|requirement| requirement.is_met_by(pool));
        pools.iter().filter(meets).copied()
    };
    let mut candidates = fits().filter(|pool| is_requested(pool, &of_pools, &pools)).peekable();
    if candidates.peek().is_some() {
        let properties = platform.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let root_is_input = candidates.all(|pool| pool.root_is_input);
        return Ok(Requirements { root_is_input, ..Requirements::of(properties) });
    }
    Err(AdmitError::Refused(if fits().next().is_some() {
        not_requested(fits())
    } else {
        let on_offer = if offers.present.is_empty() { pools } else { offers.present.iter().collect() };
        refusal(&requirements, &on_offer)
    }))
}

/// The pool for which more executors are started if an execution waits that requires `requirements` and `needs`: of those
/// that can run it the one that offers the fewest properties and resources, so that special executors stay free for actions
/// that need them; then [`DEFAULT_POOL`], then the first by name. [`DEFAULT_POOL`] comes first if nothing is required.
pub fn preferred_pool<'a>(requirements: &Requirements, needs: &Needs, pools: &'a [Pool]) -> Option<&'a Pool> {
    let order = |pool: &&Pool| {
        let is_default = pool.name.as_str() == DEFAULT_POOL;
        let special = pool.properties.len() + pool.capacity.custom.len();
        (Reverse(is_default && requirements.is_empty()), special, Reverse(is_default))
    };
    let is_large = |pool: &&Pool| wanted(needs).all(|size| !size.is_short(&pool.capacity));
    let fits = pools.iter().filter(|pool| satisfies(pool, requirements)).filter(is_large);
    fits.min_by(|a, b| order(a).cmp(&order(b)).then_with(|| a.name.cmp(&b.name)))
}

/// Whether an action may go to `pool`. Where the input root is an action's `/`, nothing of the machine is visible,
/// not even a shell: only actions that ask for such a pool are sent to it, by its name or by a value that no other
/// kind of pool offers.
fn is_requested(pool: &Pool, platform: &[RequestedProperty], pools: &[&Pool]) -> bool {
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
            Self::Property((name, value)) => value_matches(name, value, values(pool, name)),
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

/// Chooses the requirement to report. The caller knows that no pool meets all of them.
fn refusal(requirements: &[Requirement<'_>], pools: &[&Pool]) -> Refusal {
    if let Some(refusal) = unknown(requirements, pools) {
        return refusal;
    }
    let (at, candidates) = blocking_requirement(requirements, pools);
    let Some(blamed) = requirements.get(at).copied() else {
        let message = "no pool can run the action".to_owned();
        return Refusal { property: String::new(), value: String::new(), offered: Vec::new(), message };
    };
    let everywhere = blamed.offered(pools);
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
    let _ = write!(message, "; available{most}: {}{}", list(&offered), advice(&blamed.property()));
    Refusal { property: blamed.property(), value: blamed.value(), offered, message }
}

/// The refusal of a property or a custom resource that no pool knows, with the known ones.
fn unknown(requirements: &[Requirement<'_>], pools: &[&Pool]) -> Option<Refusal> {
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
        "no pool knows the {what} {:?} (requested with value {:?}); known: {}{}",
        shortened(&requirement.property()),
        shortened(&requirement.value()),
        list(&offered),
        advice(&requirement.property())
    );
    Some(Refusal { property: requirement.property(), value: requirement.value(), offered, message })
}

/// The first requirement that alone rules out all pools, and the pools that meet the rest and offer another
/// value. If no single requirement does, the first one that leaves no pool when they are applied in order, and
/// the pools before it.
fn blocking_requirement<'a>(requirements: &[Requirement<'_>], pools: &[&'a Pool]) -> (usize, Vec<&'a Pool>) {
    let meets_rest = |at: usize| -> Vec<&Pool> {
        let rest = || requirements.iter().enumerate().filter(|(index, _)| *index != at);
        let meets = |pool: &&&Pool| rest().all(|(_, requirement)| requirement.is_met_by(pool));
        pools.iter().filter(meets).copied().collect()
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
    let mut left: Vec<&Pool> = pools.to_vec();
    for (at, requirement) in requirements.iter().enumerate() {
        let next: Vec<&Pool> = left.iter().copied().filter(|pool| requirement.is_met_by(pool)).collect();
        if next.is_empty() {
            return (at, left);
        }
        left = next;
    }
    (0, left)
}

/// What an operator can do if no pool offers this property.
fn advice(property: &str) -> String {
    [
        network::advice(property),
        image::advice(property),
        services::advice(property),
        interaction::advice(property),
    ]
    .concat()
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
