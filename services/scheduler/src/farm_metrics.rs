//! The waiting executions and the executors of the whole farm, as metrics. Every scheduler shows the same.

use std::sync::Arc;

use index::actions::Actions;
use telemetry::metrics::{Gauge, Label, Readings};
use tracing::debug;

use crate::{shared::Shared, view::View};

/// Reads the metrics at each scrape from now on.
pub(crate) fn report(shared: &Shared) {
    let actions = shared.actions.clone();
    telemetry::on_scrape(move || waiting(actions.clone()));
    let view = Arc::clone(&shared.view);
    // Apart from the executions: these are known even while Redis does not answer.
    telemetry::on_scrape(move || std::future::ready(Some(live(&view))));
}

fn live(view: &View) -> Readings {
    let counts = view.counts();
    let mut readings = Readings::default();
    let states = [("ready", counts.ready), ("closed", counts.closed), ("draining", counts.draining)];
    for (state, number) in states {
        readings.add(Gauge::Executors, &[(Label::State, state)], number);
    }
    readings
}

async fn waiting(actions: Actions) -> Option<Readings> {
    let waiting = actions.waiting().await.inspect_err(|error| {
        debug!(error = telemetry::error_chain(error), "cannot count the waiting executions");
    });
    let mut readings = Readings::default();
    readings.add(Gauge::ExecutionsWaiting, &[], waiting.ok()?);
    Some(readings)
}
