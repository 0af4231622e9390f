//! Whether any pool can ever run what an action asks for, and which one does.

use std::{cmp::Reverse, collections::BTreeSet, fmt::Write as _};

use model::{Pool, PoolName};

/// The pool of an action that asks for nothing, where there is one of this name.
pub const DEFAULT_POOL: &str = "default";
/// The property that asks for a pool by its name. Every pool offers it.
pub const POOL_PROPERTY: &str = "Pool";
/// Properties whose values are compared without regard to case.
const CASELESS: [&str; 4] = [POOL_PROPERTY, "OSFamily", "Arch", "ISA"];
/// Characters of a client's text that a message repeats.
const SHOWN: usize = 200;

/// Why an action is not admitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdmitError {
    /// No executor ever registered a pool: what the farm can run is not known yet. `UNAVAILABLE`.
    NothingRegistered,
    /// No pool can ever run it. `FAILED_PRECONDITION`.
    Refused(Refusal),
}

/// What no pool can ever run, and what could be asked for instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The property.
    pub property: String,
    /// The value that was asked for.
    pub value: String,
    /// The values on offer from the pools that match everything else, sorted; for a property that no pool knows, the
    /// names that are known.
    pub offered: Vec<String>,
    /// All of this as a sentence.
    pub message: String,
}

impl std::fmt::Display for AdmitError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NothingRegistered => {
                f.write_str("no executor has registered a pool yet: start one, or try again soon")
            }
            Self::Refused(refusal) => f.write_str(&refusal.message),
        }
    }
}

impl std::error::Error for AdmitError {}

/// A property and the value asked for.
type Asked = (String, String);

/// The pool for an action that asks for `platform`: one that offers every value asked for.
///
/// Of several the one that offers the fewest properties, so that special executors stay free for what needs them,
/// then the first by name. An action that asks for nothing goes to the pool named [`DEFAULT_POOL`] if there is one.
pub fn admit(platform: &[Asked], pools: &[Pool]) -> Result<PoolName, AdmitError> {
    if pools.is_empty() {
        return Err(AdmitError::NothingRegistered);
    }
    let default = |pool: &&Pool| {
        (Reverse(platform.is_empty() && pool.name.as_str() == DEFAULT_POOL), pool.properties.len())
    };
    let fits = pools.iter().filter(|pool| platform.iter().all(|asked| offers(pool, asked)));
    match fits.min_by(|a, b| default(a).cmp(&default(b)).then_with(|| a.name.cmp(&b.name))) {
        Some(pool) => Ok(pool.name.clone()),
        None => Err(AdmitError::Refused(refusal(platform, pools))),
    }
}

fn offers(pool: &Pool, (name, value): &Asked) -> bool {
    let caseless = CASELESS.contains(&name.as_str());
    values(pool, name).any(
        |on_offer| {
            if caseless { on_offer.eq_ignore_ascii_case(value) } else { on_offer == value }
        },
    )
}

/// What `pool` offers for the property `name`.
fn values<'a>(pool: &'a Pool, name: &str) -> impl Iterator<Item = &'a str> {
    let own = (name == POOL_PROPERTY).then(|| pool.name.as_str());
    own.into_iter().chain(pool.properties.get(name).into_iter().flatten().map(String::as_str))
}

/// Which of the properties to name. That it is one of them the caller knows: no pool fits all.
fn refusal(platform: &[Asked], pools: &[Pool]) -> Refusal {
    let known: BTreeSet<&str> = pools
        .iter()
        .flat_map(|pool| pool.properties.keys().map(String::as_str))
        .chain([POOL_PROPERTY])
        .collect();
    if let Some((name, value)) = platform.iter().find(|(name, _)| !known.contains(name.as_str())) {
        let offered: Vec<String> = known.into_iter().map(str::to_owned).collect();
        let message = format!(
            "no pool knows the platform property {:?} (asked for with the value {:?}); known are: {}",
            shown(name),
            shown(value),
            list(&offered)
        );
        return Refusal { property: name.clone(), value: value.clone(), offered, message };
    }
    let (at, candidates) = to_blame(platform, pools);
    let empty = (String::new(), String::new());
    let (name, value) = platform.get(at).unwrap_or(&empty);
    let of = |pools: &[&Pool]| -> BTreeSet<String> {
        pools.iter().flat_map(|pool| values(pool, name).map(str::to_owned)).collect()
    };
    let everywhere = of(&pools.iter().collect::<Vec<_>>());
    let here = of(&candidates);
    let mut message = format!("no pool offers {} = {:?}", shown(name), shown(value));
    // Where another pool has it, it is the combination that nobody offers.
    let others: Vec<String> = platform
        .iter()
        .enumerate()
        .filter(|(index, _)| *index != at)
        .map(|(_, (name, value))| format!("{} = {:?}", shown(name), shown(value)))
        .collect();
    if !others.is_empty() && here != everywhere {
        let _ = write!(message, " together with {}", list(&others));
    }
    let offered: Vec<String> = if here.is_empty() { everywhere } else { here }.into_iter().collect();
    let _ = write!(message, "; on offer: {}", list(&offered));
    Refusal { property: name.clone(), value: value.clone(), offered, message }
}

/// The first property asked for that is alone to blame, and the pools that match the rest; where the fault is none's
/// alone, the first that leaves no pool when they are tried in their order, and the pools before it.
fn to_blame<'a>(platform: &[Asked], pools: &'a [Pool]) -> (usize, Vec<&'a Pool>) {
    let matches_rest = |at: usize| -> Vec<&Pool> {
        let rest = || platform.iter().enumerate().filter(|(index, _)| *index != at);
        pools.iter().filter(|pool| rest().all(|(_, asked)| offers(pool, asked))).collect()
    };
    let nowhere = platform.iter().position(|asked| !pools.iter().any(|pool| offers(pool, asked)));
    if let Some(at) = nowhere {
        return (at, matches_rest(at));
    }
    let alone = (0..platform.len()).map(|at| (at, matches_rest(at))).find(|(_, pools)| !pools.is_empty());
    if let Some(found) = alone {
        return found;
    }
    let mut left: Vec<&Pool> = pools.iter().collect();
    for (at, asked) in platform.iter().enumerate() {
        let next: Vec<&Pool> = left.iter().copied().filter(|pool| offers(pool, asked)).collect();
        if next.is_empty() {
            return (at, left);
        }
        left = next;
    }
    (0, left)
}

fn list(texts: &[String]) -> String {
    if texts.is_empty() { "nothing".to_owned() } else { texts.join(", ") }
}

fn shown(text: &str) -> String {
    text.chars().take(SHOWN).collect()
}

#[cfg(test)]
mod tests;
