//! Benefit of action scheduling: one scenario per mechanism, on farms with several executors.

use std::path::Path;

use crate::{
    affinity, cancelling, deaths, error::BenchError, figures::Figures, fit, join, merge, sharing, sizing,
    tail, waiters, window,
};

/// Names of the scenarios.
pub(crate) const NAMES: [&str; 11] = [
    "merge", "tail", "fit", "fairness", "deaths", "join", "affinity", "sizing", "cancel", "window", "waiters",
];

/// Runs the selected scenarios in sequence. The affinity scenario needs the sources of a `project`.
pub(crate) async fn measure(
    wants: impl Fn(&str) -> bool,
    project: Option<&Path>,
) -> Result<Figures, BenchError> {
    let mut all = Figures::default();
    for name in NAMES.into_iter().filter(|name| wants(name)) {
        let figures = match name {
            "merge" => Some(merge::measure().await?),
            "tail" => Some(tail::measure().await?),
            "fit" => Some(fit::measure().await?),
            "fairness" => Some(sharing::measure().await?),
            "deaths" => Some(deaths::measure().await?),
            "join" => Some(join::measure().await?),
            "affinity" => affinity::measure(project).await?,
            "sizing" => Some(sizing::measure()?),
            "cancel" => Some(cancelling::measure().await?),
            "window" => window::measure().await?,
            "waiters" => Some(waiters::measure().await?),
            _ => unreachable!("{name} is not a scenario"),
        };
        if let Some(figures) = figures {
            all.part(name, figures);
        }
    }
    Ok(all)
}
