//! How large an action is: what its client asks for, and the size it counts as on an executor that
//! it shares with others.
//!
//! The requested size decides whether an action can run on an executor at all; the measured use of similar
//! actions decides how densely they are packed. These are the platform properties, whose names are compared
//! without regard to case:
//!
//! | property | value |
//! |---|---|
//! | `EstimatedCPU` | processors: `2`, `0.5`, or thousandths of one: `4000m` |
//! | `EstimatedMemory` | bytes: `1e9`, `1000B`, or with a binary unit: `512M`, `2GB` (2^31), `2GiB` |
//! | `EstimatedComputeUnits` | units of 1 processor and 2.5e9 bytes; the two above override their part of it |
//! | `resources:NAME` | an amount of the custom resource `NAME`, spelt as its executors spell it: `1`, `0.5` |
//! | `exclusive` | `true`: the action has its executor for itself, for stable measurements; `false` |
//! | `measured` | `true`: it always runs, alone in its execution: not cached, not merged, no further copy; `false` |
//! | `cache` | `false`: it always runs, its result is not cached, and it is not merged with others; `true` |
//! | `forebay-services` | commands that serve the action while it runs, as JSON: see [`super::asked_services`] |
//! | `forebay-shared-services` | services that the action shares with others: see [`super::asked_shared_services`] |
//! | `forebay-interactor` | a command that talks with that of the action, as JSON: see [`super::asked_interactor`] |
//!
//! If a property is given more than once, the largest value counts, and of `cache` the value `false`. Limits on what an action may use have
//! other properties: see [`super::limits`].

use model::{Amount, CommandLimits, Needs, ResourceName, Resources, SharedServices, TestSize};

use super::{
    asked_shared_services, history::Learned, image, interaction, invalid_need::InvalidNeed, limits, network,
    services, shared_services,
};

/// The property that asks for processors.
pub const CPU_PROPERTY: &str = "EstimatedCPU";
/// The property that asks for memory.
pub const MEMORY_PROPERTY: &str = "EstimatedMemory";
/// The property that asks for processors and memory together.
pub const UNITS_PROPERTY: &str = "EstimatedComputeUnits";
/// Prefix of the property that asks for a custom resource; the name of the resource follows.
pub const RESOURCE_PREFIX: &str = "resources:";
/// The property that asks for exclusive use of an executor.
pub const EXCLUSIVE_PROPERTY: &str = "exclusive";
/// The property by which an action with the value `true` is run to measure it.
pub const MEASURED_PROPERTY: &str = "measured";
/// The property by which an action with the value `false` is not cached.
pub const CACHE_PROPERTY: &str = "cache";
/// The environment variable in which Bazel passes the size of a test.
const TEST_SIZE: &str = "TEST_SIZE";

/// Thousandths of a processor that an action without any history or request counts as: one slot.
const DEFAULT_CPU_MILLIS: u64 = 1000;
/// Minimum that an action counts as, however little it used: starting it is work for the executor too.
const LEAST: (u64, u64) = (250, 8_000_000);
/// One compute unit: thousandths of a processor, and bytes of memory.
const UNIT: (f64, f64) = (1000.0, 2.5e9);
/// Maximum request: processors, and bytes (1 PiB). A larger value is assumed to be a mistake.
const MOST: (f64, f64) = (1e6, 1_125_899_906_842_624.0);

const CPU_WANTED: &str = "expected a number of processors above 0, such as 2, 0.5 or 4000m";
const MEMORY_WANTED: &str = "expected a number of bytes above 0, such as 2GB, 512M or 1e9";
const UNITS_WANTED: &str = "expected a number above 0, such as 2 or 0.5";
const AMOUNT_WANTED: &str = "expected an amount from 0 to 1e9, such as 1 or 0.5";
const NAME_WANTED: &str = "expected the name of a resource after the colon, such as resources:gpu";
const TRUTH_WANTED: &str = "expected true or false";

/// The parts of a client's request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AskedFor {
    /// Size that the action asks for.
    pub needs: Needs,
    /// Limits on what the action may use.
    pub limits: CommandLimits,
    /// Whether it must run, and its result must not be cached.
    pub do_not_cache: bool,
    /// The remaining properties, in their order: those by which a pool is chosen.
    pub platform: Vec<(String, String)>,
}

/// Reads a client's request from the properties of its `platform` and the `environment` of its command, both as pairs
/// of name and value.
pub fn read_needs(
    platform: &[(String, String)],
    environment: &[(String, String)],
) -> Result<AskedFor, InvalidNeed> {
    let mut found = AskedFor::default();
    let mut units: Option<f64> = None;
    let needs = &mut found.needs;
    for (name, value) in platform {
        let wrong = |expected| InvalidNeed::of(name, value, expected);
        if name.eq_ignore_ascii_case(CPU_PROPERTY) {
            needs.cpu_millis = needs.cpu_millis.max(Some(cpu(value).ok_or_else(|| wrong(CPU_WANTED))?));
        } else if name.eq_ignore_ascii_case(MEMORY_PROPERTY) {
            needs.memory_bytes =
                needs.memory_bytes.max(Some(memory(value).ok_or_else(|| wrong(MEMORY_WANTED))?));
        } else if name.eq_ignore_ascii_case(UNITS_PROPERTY) {
            let asked = number(value).filter(|units| *units > 0.0 && *units <= MOST.0);
            units = Some(asked.ok_or_else(|| wrong(UNITS_WANTED))?.max(units.unwrap_or_default()));
        } else if name.eq_ignore_ascii_case(EXCLUSIVE_PROPERTY) {
            needs.exclusive |= truth(value).ok_or_else(|| wrong(TRUTH_WANTED))?;
        } else if name.eq_ignore_ascii_case(MEASURED_PROPERTY) {
            needs.measured |= truth(value).ok_or_else(|| wrong(TRUTH_WANTED))?;
            found.do_not_cache |= needs.measured;
        } else if name.eq_ignore_ascii_case(CACHE_PROPERTY) {
            found.do_not_cache |= !truth(value).ok_or_else(|| wrong(TRUTH_WANTED))?;
        } else if let Some(resource) = resource(name) {
            let resource: ResourceName = resource.parse().map_err(|_| wrong(NAME_WANTED))?;
            let amount: Amount = value.parse().map_err(|_| wrong(AMOUNT_WANTED))?;
            let most = needs.custom.get(&resource).copied().unwrap_or_default().max(amount);
            needs.custom.insert(resource, most);
        } else if shared_services::has(name) {
            found.do_not_cache = true;
        } else if let Some(required) = services::requirements(name, value) {
            found.platform.extend(required?);
        } else if let Some(required) = interaction::requirement(name, value) {
            found.platform.push(required?);
        } else if !limits::take(&mut found.limits, name, value)? {
            let required = network::requirement(name, value);
            found.platform.extend(required.and_then(|(name, value)| image::requirement(name, value)));
        }
    }
    if let Some(units) = units {
        needs.cpu_millis.get_or_insert(rounded(units * UNIT.0));
        needs.memory_bytes.get_or_insert(rounded(units * UNIT.1));
    }
    needs.test_size = test_size(environment);
    if let Some((role, id)) = asked_shared_services(platform)? {
        needs.shared_services = role;
        let is_user = role == SharedServices::Uses;
        found.platform.extend(is_user.then(|| shared_services::requirement(id)));
    }
    let has = |(name, value): (&str, &str)| found.platform.iter().any(|it| it.0 == name && it.1 == value);
    let has_services = has(services::SERVICES_OFFER) || found.needs.shared_services == SharedServices::Uses;
    if has_services && has(network::OFFER) {
        let (name, value) = network::OFFER;
        return Err(InvalidNeed::of(name, value, "expected no other network for an action with services"));
    }
    if has_services && has(interaction::INTERACTOR_OFFER) {
        let (name, value) = interaction::INTERACTOR_OFFER;
        return Err(InvalidNeed::of(name, value, "expected no interactor for an action with services"));
    }
    Ok(found)
}

/// Whether these platform properties say that the action must run and that its result must not be cached.
pub fn refuses_cache(platform: &[(String, String)]) -> bool {
    let refuses = [(CACHE_PROPERTY, false), (MEASURED_PROPERTY, true)];
    let is_one = |name: &str, value: &str| {
        refuses
            .iter()
            .any(|(property, said)| name.eq_ignore_ascii_case(property) && truth(value) == Some(*said))
    };
    platform.iter().any(|(name, value)| is_one(name, value) || shared_services::has(name))
}

/// Resources that an executor must have in total to run the action, in a pool whose largest executor has `capacity`.
/// Where the client requests nothing, this is the default size, and never more than `capacity`: without a request, any
/// machine is good enough, however small.
pub fn asked(needs: &Needs, capacity: &Resources) -> Resources {
    let mut default = Resources::new(DEFAULT_CPU_MILLIS, default_memory(needs.test_size, capacity));
    if is_known(capacity) {
        default = default.clamped(capacity);
    }
    Resources {
        cpu_millis: needs.cpu_millis.unwrap_or(default.cpu_millis),
        memory_bytes: needs.memory_bytes.unwrap_or(default.memory_bytes),
        custom: needs.custom.clone(),
    }
}

/// Resources that an action counts as while it runs on an executor with `capacity` in total: the measured
/// use of similar actions, else the request; at least `grown_memory` after it ran out of memory; never more
/// than the executor has.
///
/// Measurements of actions that are only of the same kind never lower a client's request. If neither a request nor a
/// measurement says how much memory it needs, it counts as at most its processors' share of the memory, so that an
/// executor runs as many plain actions as it has slots.
pub fn packing(
    needs: &Needs,
    learned: Option<Learned>,
    grown_memory: Option<u64>,
    capacity: &Resources,
) -> Resources {
    let learned = learned.unwrap_or_default();
    let choose = |seen: Option<u64>, asked: Option<u64>| match (seen, asked) {
        (Some(seen), Some(asked)) if learned.at_least => Some(seen.max(asked)),
        (Some(seen), _) => Some(seen),
        (None, asked) => asked,
    };
    let cpu_millis = choose(learned.cpu_millis, needs.cpu_millis).unwrap_or(DEFAULT_CPU_MILLIS);
    let memory_bytes = choose(learned.memory_bytes, needs.memory_bytes)
        .unwrap_or_else(|| default_memory(needs.test_size, capacity));
    let size = Resources {
        cpu_millis: cpu_millis.max(LEAST.0),
        memory_bytes: memory_bytes.max(LEAST.1).max(grown_memory.unwrap_or_default()),
        custom: needs.custom.clone(),
    };
    if is_known(capacity) { size.clamped(capacity) } else { size }
}

/// The first requested resource that is not available.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shortage<'a> {
    /// Thousandths of a processor.
    Cpu(u64),
    /// Number of bytes of memory.
    Memory(u64),
    /// Amount of a custom resource.
    Custom(&'a ResourceName, Amount),
}

/// All resources that `needs` asks for and that may be unavailable.
pub(super) fn wanted(needs: &Needs) -> impl Iterator<Item = Shortage<'_>> {
    let cpu = needs.cpu_millis.map(Shortage::Cpu);
    let memory = needs.memory_bytes.map(Shortage::Memory);
    let custom = needs.custom.iter().map(|(name, amount)| Shortage::Custom(name, *amount));
    cpu.into_iter().chain(memory).chain(custom)
}

impl Shortage<'_> {
    /// Whether an executor with `capacity` in total cannot provide it. A `capacity` of 0 everywhere means unknown.
    pub(super) fn is_short(&self, capacity: &Resources) -> bool {
        is_known(capacity)
            && match self {
                Self::Cpu(millis) => *millis > capacity.cpu_millis,
                Self::Memory(bytes) => *bytes > capacity.memory_bytes,
                Self::Custom(name, amount) => *amount > capacity.custom(name),
            }
    }
}

/// The first requested resource that an executor with `capacity` in total can never provide. `None` means that it can
/// run the action; also one without a request on a machine smaller than the default.
pub fn shortage<'a>(needs: &'a Needs, capacity: &Resources) -> Option<Shortage<'a>> {
    wanted(needs).find(|wanted| wanted.is_short(capacity))
}

/// Bytes of memory that an action without any known need counts as.
///
/// Bazel's own figures for tests, 20 to 800 MB, are for a scheduler that does not end tests which use more; as limits
/// they would be too small for a test that starts a Java virtual machine or an interpreter.
fn default_memory(test_size: TestSize, capacity: &Resources) -> u64 {
    let bytes = match test_size {
        TestSize::None => 400_000_000,
        TestSize::Small => 250_000_000,
        TestSize::Medium => 500_000_000,
        TestSize::Large => 1_000_000_000,
        TestSize::Enormous => 2_000_000_000,
    };
    if capacity.cpu_millis == 0 || capacity.memory_bytes == 0 {
        return bytes;
    }
    let share =
        u128::from(capacity.memory_bytes) * u128::from(DEFAULT_CPU_MILLIS) / u128::from(capacity.cpu_millis);
    bytes.min(u64::try_from(share).unwrap_or(u64::MAX))
}

fn is_known(capacity: &Resources) -> bool {
    capacity.cpu_millis > 0 || capacity.memory_bytes > 0 || !capacity.custom.is_empty()
}

fn test_size(environment: &[(String, String)]) -> TestSize {
    let size = environment.iter().find(|(name, _)| name == TEST_SIZE).map(|(_, value)| value.as_str());
    match size {
        None | Some("") => TestSize::None,
        Some("small") => TestSize::Small,
        Some("medium") => TestSize::Medium,
        Some("large") => TestSize::Large,
        Some(_) => TestSize::Enormous,
    }
}

/// The name in a property `resources:NAME`.
fn resource(property: &str) -> Option<&str> {
    let (prefix, name) = property.split_at_checked(RESOURCE_PREFIX.len())?;
    prefix.eq_ignore_ascii_case(RESOURCE_PREFIX).then_some(name)
}

/// Thousandths of a processor, at least one.
fn cpu(text: &str) -> Option<u64> {
    let text = text.trim();
    let processors = match text.strip_suffix(['m', 'M']) {
        Some(millis) => number(millis)? / 1000.0,
        None => number(text)?,
    };
    (processors > 0.0 && processors <= MOST.0).then(|| rounded(processors * 1000.0).max(1))
}

/// Number of bytes, at least one.
fn memory(text: &str) -> Option<u64> {
    let text = text.trim().to_ascii_lowercase();
    let text = text.strip_suffix('b').unwrap_or(&text);
    let (digits, binary) = text.strip_suffix('i').map_or((text, false), |digits| (digits, true));
    let unit = digits.chars().last().and_then(|last| "kmgt".find(last));
    let (digits, power) = match unit {
        Some(at) => (digits.get(..digits.len() - 1)?, at + 1),
        None if binary => return None,
        None => (digits, 0),
    };
    let bytes =
        number(digits)? * [1.0, 1024.0, 1_048_576.0, 1_073_741_824.0, 1_099_511_627_776.0].get(power)?;
    (bytes > 0.0 && bytes <= MOST.1).then(|| rounded(bytes).max(1))
}

/// A finite decimal number; `inf` and `nan` are rejected.
fn number(text: &str) -> Option<f64> {
    text.trim().parse().ok().filter(|number: &f64| number.is_finite())
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "its range was checked")]
fn rounded(number: f64) -> u64 {
    number.round() as u64
}

fn truth(text: &str) -> Option<bool> {
    let equals = |word: &str| text.trim().eq_ignore_ascii_case(word);
    if equals("true") { Some(true) } else { equals("false").then_some(false) }
}

#[cfg(test)]
mod tests;
