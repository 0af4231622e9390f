//! The queues and workers of the whole farm, as metrics. Every dispatcher shows the same.

use bus::{Bus, BusError, EventSubject, stream};
use index::{Depths, Index};
use model::{Millis, Priority, Sequence};
use telemetry::metrics::{Gauge, Label, Readings};
use tracing::debug;

use crate::workers::Workers;

/// Reads the metrics at each scrape from now on.
pub(crate) fn report(bus: &Bus, index: &Index, workers: &Workers) {
    let (bus, index) = (bus.clone(), index.clone());
    telemetry::on_scrape(move || queues(bus.clone(), index.clone()));
    let workers = workers.clone();
    // Apart from the queues: these are known even while Redis does not answer.
    telemetry::on_scrape(move || std::future::ready(Some(live(&workers))));
}

fn live(workers: &Workers) -> Readings {
    let counts = workers.counts();
    let mut readings = Readings::default();
    for (state, number) in [("ready", counts.ready), ("draining", counts.draining), ("full", counts.full)] {
        readings.add(Gauge::Workers, &[(Label::State, state)], number);
    }
    readings
}

async fn queues(bus: Bus, index: Index) -> Option<Readings> {
    let depths = index.depths().await.inspect_err(|error| {
        debug!(error = telemetry::error_chain(error), "cannot read the depths of the queues");
    });
    let Depths { running, queues } = depths.ok()??;
    let mut readings = Readings::default();
    readings.add(Gauge::BuildsRunning, &[], running);
    for (priority, depth) in queues {
        let oldest = match depth.oldest {
            Some(position) => waiting_since(&bus, position).await.ok()?,
            None => None,
        };
        add(&mut readings, priority, depth.waiting, oldest, bus.now());
    }
    Some(readings)
}

fn add(readings: &mut Readings, priority: Priority, waiting: u64, oldest: Option<Millis>, now: Millis) {
    let labels = [(Label::Priority, priority.as_str())];
    readings.add(Gauge::BuildsWaiting, &labels, waiting);
    let wait = oldest.map_or(0, |since| now.since(since).as_secs());
    readings.add(Gauge::BuildsOldestWaitSeconds, &labels, wait);
}

/// When the build was queued whose BUILD_ENQUEUED is at `position`. If it is gone, the build no longer waits.
async fn waiting_since(bus: &Bus, position: Sequence) -> Result<Option<Millis>, BusError> {
    let found = bus.stream(stream::EVENTS).first_from(EventSubject::LIFECYCLES, position).await;
    let found = found.inspect_err(|error| {
        debug!(error = telemetry::error_chain(error), "cannot read since when a build waits");
    })?;
    Ok(found.filter(|stored| stored.sequence == position).map(|stored| stored.at))
}
