//! Benefit of action scheduling: one scenario per mechanism, on farms with several executors.

use std::{fmt, path::Path};

use serde::Serialize;

use crate::{
    affinity::{self, Affinity},
    cancelling::{self, Cancelling},
    deaths::{self, Deaths},
    error::BenchError,
    fit::{self, Fit},
    join::{self, Join},
    merge::{self, Merge},
    messages::{self, Messages},
    progress::say,
    sharing::{self, Sharing},
    sizing::{self, Sizing},
    tail::{self, Tail},
    waiters::{self, Waiters},
    window::{self, Window},
};

/// Names of the scenarios.
pub(crate) const NAMES: [&str; 12] = [
    "merge", "tail", "fit", "fairness", "deaths", "join", "affinity", "sizing", "messages", "cancel",
    "window", "waiters",
];

/// Figures of the selected scenarios.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Scenarios {
    merge: Option<Merge>,
    tail: Option<Tail>,
    fit: Option<Fit>,
    fairness: Option<Sharing>,
    deaths: Option<Deaths>,
    join: Option<Join>,
    affinity: Option<Affinity>,
    sizing: Option<Sizing>,
    messages: Option<Messages>,
    cancel: Option<Cancelling>,
    window: Option<Window>,
    waiters: Option<Waiters>,
}

impl Scenarios {
    /// Runs the selected scenarios in sequence. The affinity scenario needs the sources of a `project`.
    pub(crate) async fn measure(
        wants: impl Fn(&str) -> bool,
        project: Option<&Path>,
    ) -> Result<Self, BenchError> {
        let mut all = Self::default();
        if wants("merge") {
            all.merge = Some(merge::measure().await?);
        }
        if wants("tail") {
            all.tail = Some(tail::measure().await?);
        }
        if wants("fit") {
            all.fit = Some(fit::measure().await?);
        }
        if wants("fairness") {
            all.fairness = Some(sharing::measure().await?);
        }
        if wants("deaths") {
            all.deaths = Some(deaths::measure().await?);
        }
        if wants("join") {
            all.join = Some(join::measure().await?);
        }
        if wants("affinity") {
            if let Some(project) = project {
                all.affinity = Some(affinity::measure(project).await?);
            } else {
                say("skipping affinity: set --project to the sources of a C project");
            }
        }
        if wants("sizing") {
            all.sizing = Some(sizing::measure()?);
        }
        if wants("messages") {
            all.messages = Some(messages::measure().await?);
        }
        if wants("cancel") {
            all.cancel = Some(cancelling::measure().await?);
        }
        if wants("window") {
            all.window = window::measure().await?;
        }
        if wants("waiters") {
            all.waiters = Some(waiters::measure().await?);
        }
        Ok(all)
    }
}

impl fmt::Display for Scenarios {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: [Option<&dyn fmt::Display>; 12] = [
            part(self.merge.as_ref()),
            part(self.tail.as_ref()),
            part(self.fit.as_ref()),
            part(self.fairness.as_ref()),
            part(self.deaths.as_ref()),
            part(self.join.as_ref()),
            part(self.affinity.as_ref()),
            part(self.sizing.as_ref()),
            part(self.messages.as_ref()),
            part(self.cancel.as_ref()),
            part(self.window.as_ref()),
            part(self.waiters.as_ref()),
        ];
        parts.into_iter().flatten().try_for_each(|part| write!(f, "{part}"))
    }
}

fn part<T: fmt::Display>(one: Option<&T>) -> Option<&dyn fmt::Display> {
    one.map(|one| -> &dyn fmt::Display { one })
}
