//! The views of `forebay top`, in the order of their keys.

/// A table of the farm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(crate) enum View {
    /// What failed, runs and waits
    Overview,
    Builds,
    Workers,
    Executors,
    /// Waiting builds by group and priority
    Queues,
    /// Quotas and use of groups
    Quota,
}

impl View {
    pub(crate) const ALL: [Self; 6] =
        [Self::Overview, Self::Builds, Self::Workers, Self::Executors, Self::Queues, Self::Quota];

    /// Path of the page that shows the same.
    pub(crate) fn page(self) -> &'static str {
        match self {
            Self::Overview | Self::Builds => "/builds",
            Self::Workers | Self::Executors | Self::Queues => "/farm",
            Self::Quota => "/quota",
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Overview => "overview",
            Self::Builds => "builds",
            Self::Workers => "workers",
            Self::Executors => "executors",
            Self::Queues => "queues",
            Self::Quota => "quota",
        }
    }
}
