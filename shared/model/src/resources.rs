//! Resources that actions request and machines offer: processors, memory, and custom resources
//! counted by the operator.

use std::{borrow::Cow, collections::BTreeMap, fmt, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{ParseIdError, ids::token};

token!(
    /// Name of a custom resource of executors, for example `gpu` or `synth-licence`: 1 to 64 letters,
    /// digits, `-` or `_`.
    ResourceName,
    "resource name"
);

/// An amount of a custom resource, 0 to 1e9, for example `1` or `0.5`. Stored as exact millionths, so that
/// sums do not drift.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Amount(u64);

impl Amount {
    const MICROS: u64 = 1_000_000;

    /// Converts a whole number of units.
    pub fn whole(count: u32) -> Self {
        Self(u64::from(count) * Self::MICROS)
    }

    /// The amount in millionths.
    pub fn micros(self) -> u64 {
        self.0
    }

    /// Converts a number of millionths.
    pub fn of_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// The difference to `other`; zero if `other` is larger.
    #[must_use]
    pub fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, rest) = (self.0 / Self::MICROS, self.0 % Self::MICROS);
        if rest == 0 {
            return write!(f, "{whole}");
        }
        let digits = format!("{rest:06}");
        write!(f, "{whole}.{}", digits.trim_end_matches('0'))
    }
}

impl FromStr for Amount {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || ParseIdError::new("amount", text, "expected a number from 0 to 1e9, such as 1 or 0.5");
        let number: f64 = text.trim().parse().map_err(|_| wrong())?;
        if !(0.0..=1e9).contains(&number) {
            return Err(wrong());
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "its range was checked")]
        let micros = (number * Self::MICROS as f64).round() as u64;
        Ok(Self(micros))
    }
}

impl Serialize for Amount {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// Settings contain numbers (`gpu = 2`), messages contain text (`"2"`).
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either<'a> {
            Number(f64),
            Text(Cow<'a, str>),
        }
        let text = match Either::deserialize(deserializer)? {
            Either::Number(number) => Cow::Owned(number.to_string()),
            Either::Text(text) => text,
        };
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Amount {
    fn schema_name() -> Cow<'static, str> {
        "Amount".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "pattern": "^[0-9]+([.][0-9]{1,6})?$" })
    }
}

/// Resources that an action needs while it runs, that an executor has, or that are left of that.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Resources {
    /// CPU in thousandths of a processor.
    pub cpu_millis: u64,
    /// Amount of memory in bytes.
    pub memory_bytes: u64,
    /// Amounts of custom resources by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub custom: BTreeMap<ResourceName, Amount>,
}

impl Resources {
    /// Processors and memory without custom resources.
    pub fn new(cpu_millis: u64, memory_bytes: u64) -> Self {
        Self { cpu_millis, memory_bytes, custom: BTreeMap::new() }
    }

    /// The amount of a custom resource; zero if it is not listed.
    pub fn custom(&self, name: &ResourceName) -> Amount {
        self.custom.get(name).copied().unwrap_or_default()
    }

    /// Whether all of it fits into `room`.
    pub fn fits(&self, room: &Self) -> bool {
        self.cpu_millis <= room.cpu_millis && self.memory_bytes <= room.memory_bytes && self.fits_custom(room)
    }

    /// Whether its custom resources fit into `room`.
    pub fn fits_custom(&self, room: &Self) -> bool {
        self.custom.iter().all(|(name, amount)| *amount <= room.custom(name))
    }

    /// Subtracts `other`, saturating at zero.
    pub fn take(&mut self, other: &Self) {
        self.cpu_millis = self.cpu_millis.saturating_sub(other.cpu_millis);
        self.memory_bytes = self.memory_bytes.saturating_sub(other.memory_bytes);
        for (name, amount) in &other.custom {
            if let Some(left) = self.custom.get_mut(name) {
                *left = left.saturating_sub(*amount);
            }
        }
    }

    /// Adds all amounts of `other`.
    pub fn add(&mut self, other: &Self) {
        self.cpu_millis = self.cpu_millis.saturating_add(other.cpu_millis);
        self.memory_bytes = self.memory_bytes.saturating_add(other.memory_bytes);
        for (name, amount) in &other.custom {
            let sum = self.custom(name).0.saturating_add(amount.0);
            self.custom.insert(name.clone(), Amount(sum));
        }
    }

    /// The larger amount of each resource.
    #[must_use]
    pub fn max(&self, other: &Self) -> Self {
        let mut larger = self.clone();
        larger.cpu_millis = larger.cpu_millis.max(other.cpu_millis);
        larger.memory_bytes = larger.memory_bytes.max(other.memory_bytes);
        for (name, amount) in &other.custom {
            let most = larger.custom(name).max(*amount);
            larger.custom.insert(name.clone(), most);
        }
        larger
    }

    /// Processors and memory limited to those of `whole`; custom resources are unchanged.
    #[must_use]
    pub fn clamped(&self, whole: &Self) -> Self {
        Self {
            cpu_millis: self.cpu_millis.min(whole.cpu_millis),
            memory_bytes: self.memory_bytes.min(whole.memory_bytes),
            custom: self.custom.clone(),
        }
    }

    /// The dominant share: the larger of its CPU and memory shares of `whole`, from 0 up.
    pub fn share_of(&self, whole: &Self) -> f64 {
        let share = |part: u64, all: u64| if all == 0 { 0.0 } else { part as f64 / all as f64 };
        let cpu = share(self.cpu_millis, whole.cpu_millis);
        cpu.max(share(self.memory_bytes, whole.memory_bytes))
    }
}

/// Prints a list such as `2 processors, 400 MB of memory, 1 gpu`.
impl fmt::Display for Resources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let processors = self.cpu_millis as f64 / 1000.0;
        write!(f, "{processors} processors, {} MB of memory", self.memory_bytes / 1_000_000)?;
        for (name, amount) in &self.custom {
            write!(f, ", {amount} {name}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu() -> ResourceName {
        "gpu".parse().unwrap()
    }

    #[test]
    fn amounts_are_exact() {
        let tenth: Amount = "0.1".parse().unwrap();
        let mut sum = Resources::default();
        for _ in 0..10 {
            sum.add(&Resources { custom: BTreeMap::from([(gpu(), tenth)]), ..Resources::default() });
        }
        assert_eq!(sum.custom(&gpu()), Amount::whole(1));
        assert_eq!(tenth.to_string(), "0.1");
        assert_eq!("3.14".parse::<Amount>().unwrap().to_string(), "3.14");
        for wrong in ["", "blah", "-1", "NaN", "inf", "1e10"] {
            assert!(wrong.parse::<Amount>().is_err(), "{wrong}");
        }
        assert_eq!(serde_json::from_str::<Amount>("2").unwrap(), Amount::whole(2));
        assert_eq!(serde_json::from_str::<Amount>("\"0.5\"").unwrap().micros(), 500_000);
    }

    #[test]
    fn what_is_not_there_does_not_fit() {
        let room =
            Resources { custom: BTreeMap::from([(gpu(), Amount::whole(1))]), ..Resources::new(2000, 100) };
        let mut asked = Resources::new(2000, 100);
        assert!(asked.fits(&room));
        asked.custom.insert(gpu(), Amount::whole(2));
        assert!(!asked.fits(&room) && !asked.fits_custom(&room));
        asked.custom = BTreeMap::from([("licence".parse().unwrap(), Amount::whole(1))]);
        assert!(!asked.fits(&room));
        assert!((Resources::new(1000, 75).share_of(&room) - 0.75).abs() < 1e-9);
    }
}
