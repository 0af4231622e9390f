//! Numbers with a fraction in a job.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// A finite number of at least 0. Unlike `f64`, all its values can be compared for equality.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fraction(f64);

impl Eq for Fraction {}

impl Fraction {
    /// The number as a fraction; `None` if it is negative or not finite.
    pub fn new(number: f64) -> Option<Self> {
        // Adding zero turns -0 into 0, so that equal numbers have the same JSON.
        (number.is_finite() && number >= 0.0).then_some(Self(number + 0.0))
    }

    /// The number as `f64`, finite and at least 0.
    pub fn get(self) -> f64 {
        self.0
    }
}

impl Serialize for Fraction {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.0)
    }
}

impl<'de> Deserialize<'de> for Fraction {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = f64::deserialize(deserializer)?;
        Self::new(number)
            .ok_or_else(|| D::Error::custom(format!("it is {number}: expected a number of at least 0")))
    }
}

impl JsonSchema for Fraction {
    fn schema_name() -> Cow<'static, str> {
        "Fraction".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "number", "minimum": 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_finite_numbers_from_zero_are_fractions() {
        for bad in [-1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(Fraction::new(bad), None, "{bad}");
        }
        for (text, number) in [("2", 2.0), ("0.5", 0.5), ("1e-9", 1e-9), ("-0.0", 0.0)] {
            let read: Fraction = serde_json::from_str(text).unwrap();
            assert_eq!(Some(read), Fraction::new(number), "{text}");
        }
        let error = serde_json::from_str::<Fraction>("-3").unwrap_err().to_string();
        assert!(error.contains("-3") && error.contains("at least 0"), "{error}");
        assert_eq!(serde_json::to_string(&Fraction::new(-0.0)).unwrap(), "0.0");
    }
}
