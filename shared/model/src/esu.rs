//! Occupancy of builds: executor service units (ESU) by executor type.

use std::{
    collections::BTreeMap,
    fmt,
    iter::Sum,
    ops::{Add, Neg, Sub},
};

use invariant::Present as _;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::token;

token!(
    /// Hardware architecture of executors, for example `x86`, `mac` or `gpu`.
    ExecutorType,
    "executor type"
);

impl ExecutorType {
    /// The type that every build uses (section 4.1 of the paper).
    pub fn x86() -> Self {
        Self("x86".to_owned())
    }
}

/// An amount of executor service units: 1 ESU is 2.5 GB of memory or one executor (section 3.5 of the paper). Stored
/// as exact millionths, so that sums do not drift. Negative amounts are differences.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Esu(i64);

/// A number that is not a valid amount of ESU.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("invalid ESU amount {0}: expected a number between -1e9 and 1e9")]
pub struct NotEsu(f64);

impl Esu {
    pub const ZERO: Self = Self(0);
    /// One unit (1 ESU).
    pub const ONE: Self = Self(Self::MICROS);
    /// Upper limit of amounts, more than any farm has: 1e9 ESU.
    pub const MAX: Self = Self(1_000_000_000 * Self::MICROS);
    /// Bytes of memory that count as one unit.
    pub const BYTES: u64 = 2_500_000_000;

    const MICROS: i64 = 1_000_000;

    /// Converts units, -1e9 to 1e9.
    #[expect(clippy::cast_possible_truncation, reason = "its range was checked")]
    pub fn new(units: f64) -> Result<Self, NotEsu> {
        if units.is_finite() && units.abs() <= 1e9 {
            Ok(Self((units * Self::MICROS as f64).round() as i64))
        } else {
            Err(NotEsu(units))
        }
    }

    /// Converts units; values out of range become the nearest valid amount, and NaN becomes zero.
    pub fn clamped(units: f64) -> Self {
        if units.is_nan() {
            Self::ZERO
        } else {
            Self::new(units.clamp(-1e9, 1e9)).present("the amount of a clamped number")
        }
    }

    /// ESU of `executors` executors and `bytes` of memory held at the same time: the larger of the two.
    pub fn of_use(executors: f64, bytes: f64) -> Self {
        Self::clamped(executors.max(bytes / Self::BYTES as f64).max(0.0))
    }

    /// Converts millionths of a unit.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// The amount in millionths of a unit.
    pub const fn micros(self) -> i64 {
        self.0
    }

    /// The amount in units.
    pub fn units(self) -> f64 {
        self.0 as f64 / Self::MICROS as f64
    }

    /// The amount multiplied by `factor`.
    #[must_use]
    pub fn times(self, factor: f64) -> Self {
        Self::clamped(self.units() * factor)
    }

    /// The amount, or zero if it is negative.
    #[must_use]
    pub fn or_zero(self) -> Self {
        self.max(Self::ZERO)
    }
}

impl Add for Esu {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl Sub for Esu {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Neg for Esu {
    type Output = Self;

    fn neg(self) -> Self {
        Self(self.0.saturating_neg())
    }
}

impl Sum for Esu {
    fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
        amounts.fold(Self::ZERO, Add::add)
    }
}

impl fmt::Display for Esu {
    /// Prints at most three decimals.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Adding 0.0 turns a negative zero into a positive one.
        let rounded = (self.units() * 1000.0).round() / 1000.0 + 0.0;
        fmt::Display::fmt(&rounded, f)
    }
}

impl Serialize for Esu {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0 % Self::MICROS == 0 {
            serializer.serialize_i64(self.0 / Self::MICROS)
        } else {
            serializer.serialize_f64(self.units())
        }
    }
}

impl<'de> Deserialize<'de> for Esu {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(f64::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Esu {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Esu".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "number",
            "description": "Executor service units: 1 ESU is 2.5 GB of memory or one executor.",
            "minimum": -1e9,
            "maximum": 1e9
        })
    }
}

/// ESU by executor type; types that are not listed are not used.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Occupancy(pub BTreeMap<ExecutorType, Esu>);

/// A text that is not an amount of ESU of one type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid amount {text:?}: {why}")]
pub struct ParseAmountError {
    text: String,
    why: String,
}

/// Parses an amount of ESU of one type, `TYPE=ESU`, which must not be negative.
pub fn parse_amount(text: &str) -> Result<(ExecutorType, Esu), ParseAmountError> {
    let wrong = |why: String| ParseAmountError { text: text.to_owned(), why };
    let wanted = || wrong("expected TYPE=ESU, for example x86=4".to_owned());
    let (kind, units) = text.split_once('=').ok_or_else(wanted)?;
    let kind = kind.parse().map_err(|error: crate::ParseIdError| wrong(error.to_string()))?;
    let units: f64 = units.parse().map_err(|_| wanted())?;
    let amount = Esu::new(units).map_err(|error| wrong(error.to_string()))?;
    if amount < Esu::ZERO {
        return Err(wrong("expected at least 0 ESU".to_owned()));
    }
    Ok((kind, amount))
}

impl Occupancy {
    /// Assigns `amount` to each of `types`.
    pub fn of_each(types: impl IntoIterator<Item = ExecutorType>, amount: Esu) -> Self {
        types.into_iter().map(|kind| (kind, amount)).collect()
    }

    /// The amount of one type; zero if it is not listed.
    pub fn get(&self, kind: &ExecutorType) -> Esu {
        self.0.get(kind).copied().unwrap_or_default()
    }

    /// Adds `amount` to one type.
    pub fn add(&mut self, kind: &ExecutorType, amount: Esu) {
        match self.0.get_mut(kind) {
            Some(held) => *held = *held + amount,
            None => {
                self.0.insert(kind.clone(), amount);
            }
        }
    }

    /// All types with their amounts, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&ExecutorType, Esu)> {
        self.0.iter().map(|(kind, amount)| (kind, *amount))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<(ExecutorType, Esu)> for Occupancy {
    fn from_iter<I: IntoIterator<Item = (ExecutorType, Esu)>>(amounts: I) -> Self {
        Self(amounts.into_iter().collect())
    }
}

impl fmt::Display for Occupancy {
    /// Prints a list such as `x86 10, mac 2.5`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (kind, amount)) in self.iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            write!(f, "{comma}{kind} {amount}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_amount_is_written_with_its_type() {
        assert_eq!(parse_amount("gpu=0.5"), Ok(("gpu".parse().unwrap(), Esu::new(0.5).unwrap())));
        for bad in ["x86", "x86=", "x86=-1", "x86=NaN", "x86=2e9", "=1", "x 86=1"] {
            let why = parse_amount(bad).unwrap_err().to_string();
            assert!(why.starts_with(&format!("invalid amount {bad:?}: ")), "{why}");
        }
    }

    #[test]
    fn amounts_are_exact_and_nonsense_is_refused() {
        let tenth = Esu::new(0.1).unwrap();
        assert_eq!(tenth + Esu::new(0.2).unwrap(), Esu::new(0.3).unwrap());
        for bad in [f64::NAN, f64::INFINITY, 2e9] {
            assert!(Esu::new(bad).is_err());
        }
        assert_eq!(Esu::clamped(f64::NAN), Esu::ZERO);
        assert_eq!(Esu::from_micros(-3).to_string(), "0");
        assert_eq!(Esu::of_use(1.0, 5e9), Esu::new(2.0).unwrap());
    }

    #[test]
    fn whole_amounts_are_written_whole() {
        let text = serde_json::to_string(&[Esu::ONE, Esu::new(2.5).unwrap()]).unwrap();
        assert_eq!(text, "[1,2.5]");
        assert_eq!(serde_json::from_str::<[Esu; 2]>(&text).unwrap()[1].to_string(), "2.5");
    }

    #[test]
    fn amounts_survive_messagepack() {
        let occupancy = Occupancy::of_each([ExecutorType::x86()], Esu::ONE);
        let bytes = rmp_serde::to_vec_named(&occupancy).unwrap();
        assert_eq!(rmp_serde::from_slice::<Occupancy>(&bytes).unwrap(), occupancy);
    }
}
