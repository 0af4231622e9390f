//! The streams and durable consumers of the bus, as metrics. Every reaper shows the same.

use bus::{Bus, BusError, ConsumerState, StreamState};
use jetstream::{ConsumerSpec, Topology};
use model::{Millis, Sequence};
use service::Context;
use telemetry::metrics::{Gauge, Label, Readings};
use tracing::debug;

/// Reads the metrics at each scrape from now on: each stream and consumer by itself, because one may be missing.
pub(crate) fn report(context: &Context) {
    let topology = Topology::new(&context.settings.topology);
    for stream in topology.streams {
        let bus = context.bus.clone();
        telemetry::on_scrape(move || {
            let (bus, name) = (bus.clone(), stream.name.clone());
            async move { readable(bus.stream(&name).state().await).map(|state| of_stream(&name, state)) }
        });
    }
    for consumer in topology.consumers {
        let bus = context.bus.clone();
        telemetry::on_scrape(move || {
            let (bus, consumer) = (bus.clone(), consumer.clone());
            async move { readable(of_consumer(&bus, &consumer).await) }
        });
    }
}

fn readable<T>(read: Result<T, BusError>) -> Option<T> {
    let log =
        |error: &BusError| debug!(error = telemetry::error_chain(error), "metrics of the bus are missing");
    read.inspect_err(log).ok()
}

fn of_stream(name: &str, state: StreamState) -> Readings {
    let labels = [(Label::BusStream, name)];
    let mut readings = Readings::default();
    readings.add(Gauge::StreamBytes, &labels, state.bytes);
    readings.add(Gauge::StreamBytesMax, &labels, state.bytes_max.unwrap_or(0));
    readings.add(Gauge::StreamMessages, &labels, state.messages);
    readings
}

async fn of_consumer(bus: &Bus, consumer: &ConsumerSpec) -> Result<Readings, BusError> {
    let state = bus.stream(consumer.stream).consumer(consumer.name()).await?;
    let oldest = oldest(bus, consumer, state).await?;
    let labels = [(Label::Consumer, consumer.name())];
    let mut readings = Readings::default();
    for (gauge, value) in [
        (Gauge::ConsumerPending, state.pending),
        (Gauge::ConsumerAckPending, state.ack_pending),
        (Gauge::ConsumerAckPendingMax, state.ack_pending_max.unwrap_or(0)),
        (Gauge::ConsumerRedelivered, state.redelivered),
        (Gauge::ConsumerPulls, state.pulls),
        (Gauge::ConsumerOldestSeconds, oldest.map_or(0, |at| bus.now().since(at).as_secs())),
    ] {
        readings.add(gauge, &labels, value);
    }
    Ok(readings)
}

/// When the oldest message was stored that is not acknowledged.
async fn oldest(
    bus: &Bus,
    consumer: &ConsumerSpec,
    state: ConsumerState,
) -> Result<Option<Millis>, BusError> {
    if state.pending + state.ack_pending == 0 {
        return Ok(None);
    }
    let next = Sequence(state.floor.0 + 1);
    let found = bus.stream(consumer.stream).first_from(&consumer.config.filter_subject, next).await?;
    Ok(found.map(|stored| stored.at))
}
