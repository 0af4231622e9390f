use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Maximum number of basic features in one cross (section 4.3 of the paper).
pub const MAX_FEATURES: usize = 6;

/// A basic feature of a build, as a part of a cross.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Feature {
    /// The build tool's command, such as `build` or `test`.
    Command,
    /// The quota group of the build.
    Group,
    /// The priority of the build.
    Priority,
    /// All values of the flag of this name.
    Flag(String),
    /// Each package, weighted by its number of targets.
    Package,
    /// Each target of the build.
    Target,
    /// Number of targets: its magnitude as a category if combined with `Package` or `Target`, else the
    /// number as a factor.
    TargetCount,
    /// Number of packages, used in the same way as `TargetCount`.
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

/// A synthetic feature: the combination of up to [`MAX_FEATURES`] basic features (section 4.3 of the paper). Displayed
/// as `command x package`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Vec<Feature>", into = "Vec<Feature>")]
pub struct Cross {
    features: Vec<Feature>,
}

impl Cross {
    /// The cross of these features: 1 to [`MAX_FEATURES`] features, of which at most one is `Package` or `Target` (a
    /// target has exactly one package), and at most one is a count. `None` if they cannot be combined.
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

    /// This cross without one of its features, if any feature is left.
    pub(crate) fn without(&self, feature: &Feature) -> Option<Self> {
        Self::new(self.features.iter().filter(|other| *other != feature).cloned())
    }

    /// This cross with an additional feature, if that cross is valid.
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
        Self::new(features).ok_or("these features cannot be combined into a cross")
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
    /// Lists of crosses by executor type.
    pub by_type: BTreeMap<String, Vec<Cross>>,
}

impl Crosses {
    /// The crosses of one executor type.
    #[must_use]
    pub fn of(&self, executor_type: &str) -> &[Cross] {
        self.by_type.get(executor_type).map(Vec::as_slice).unwrap_or_default()
    }
}
