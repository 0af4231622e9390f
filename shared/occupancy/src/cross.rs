use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Most basic features in one cross (section 4.3).
pub const MAX_FEATURES: usize = 6;

/// A basic feature of a build, as a part of a cross.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Feature {
    /// The command.
    Command,
    /// The quota group.
    Group,
    /// The priority.
    Priority,
    /// All values of the flag of this name.
    Flag(String),
    /// Each package, times the number of its targets.
    Package,
    /// Each target.
    Target,
    /// Number of targets: with `Package` or `Target` its magnitude as a category, else the number as a factor.
    TargetCount,
    /// Number of packages, likewise.
    PackageCount,
}

impl fmt::Display for Feature {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Command => formatter.write_str("command"),
            Self::Group => formatter.write_str("group"),
            Self::Priority => formatter.write_str("priority"),
            Self::Flag(name) => formatter.write_str(name),
            Self::Package => formatter.write_str("package"),
            Self::Target => formatter.write_str("target"),
            Self::TargetCount => formatter.write_str("target count"),
            Self::PackageCount => formatter.write_str("package count"),
        }
    }
}

/// A synthetic feature: the combination of up to [`MAX_FEATURES`] basic ones (section 4.3). Shown as
/// `command x package`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Vec<Feature>", into = "Vec<Feature>")]
pub struct Cross {
    features: Vec<Feature>,
}

impl Cross {
    /// The cross of these features: at least one and at most [`MAX_FEATURES`], of `Package` and `Target` no more than
    /// one (a target has one package), and of the two counts no more than one.
    #[must_use]
    pub fn new(features: impl IntoIterator<Item = Feature>) -> Option<Self> {
        let mut features: Vec<Feature> = features.into_iter().collect();
        features.sort_unstable();
        features.dedup();
        let both = |one, other| features.contains(&one) && features.contains(&other);
        let fits = (1..=MAX_FEATURES).contains(&features.len())
            && !both(Feature::Package, Feature::Target)
            && !both(Feature::TargetCount, Feature::PackageCount);
        fits.then_some(Self { features })
    }

    /// Its features, in a fixed order.
    #[must_use]
    pub fn features(&self) -> &[Feature] {
        &self.features
    }

    /// This cross with one feature less, if any is left.
    pub(crate) fn without(&self, feature: &Feature) -> Option<Self> {
        Self::new(self.features.iter().filter(|other| *other != feature).cloned())
    }

    /// This cross with one feature more, if such a cross may be.
    pub(crate) fn with(&self, feature: &Feature) -> Option<Self> {
        if self.features.contains(feature) {
            return None;
        }
        Self::new(self.features.iter().chain([feature]).cloned())
    }
}

impl TryFrom<Vec<Feature>> for Cross {
    type Error = &'static str;

    fn try_from(features: Vec<Feature>) -> Result<Self, Self::Error> {
        Self::new(features).ok_or("no cross can be of these features")
    }
}

impl From<Cross> for Vec<Feature> {
    fn from(cross: Cross) -> Self {
        cross.features
    }
}

impl fmt::Display for Cross {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, feature) in self.features.iter().enumerate() {
            formatter.write_str(if place == 0 { "" } else { " x " })?;
            feature.fmt(formatter)?;
        }
        Ok(())
    }
}

/// The crosses to learn with, for each executor type.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Crosses {
    /// By executor type.
    pub by_type: BTreeMap<String, Vec<Cross>>,
}

impl Crosses {
    /// Those for one executor type.
    #[must_use]
    pub fn of(&self, executor_type: &str) -> &[Cross] {
        self.by_type.get(executor_type).map(Vec::as_slice).unwrap_or_default()
    }
}
