//! Read-only comparison of the server with the topology.

use async_nats::jetstream::{consumer, context::ConsumerInfoErrorKind, stream::Stream};
use bus::Bus;

use crate::{
    ConsumerSpec, Difference, Topology, TopologyError,
    apply::{compare, consumer_label, is_missing},
};

/// Everything on the server that is missing or differs from `topology`.
pub async fn check(bus: &Bus, topology: &Topology) -> Result<Vec<Difference>, TopologyError> {
    let mut differences = Vec::new();
    for config in &topology.streams {
        let what = format!("stream {}", config.name);
        match stream(bus, &config.name).await.map_err(read_error(&what))? {
            Some(found) => differences.extend(compare(&what, config, &found.cached_info().config)),
            None => differences.push(Difference::missing(what)),
        }
    }
    for spec in &topology.consumers {
        let what = consumer_label(spec);
        match consumer(bus, spec).await.map_err(read_error(&what))? {
            Some(found) => differences.extend(compare(&what, &spec.config, &found)),
            None => differences.push(Difference::missing(what)),
        }
    }
    Ok(differences)
}

type Cause = Box<dyn std::error::Error + Send + Sync>;

fn read_error(what: &str) -> impl FnOnce(Cause) -> TopologyError {
    TopologyError::at(what.to_owned(), "read")
}

async fn stream(bus: &Bus, name: &str) -> Result<Option<Stream>, Cause> {
    match bus.jetstream().get_stream(name).await {
        Ok(stream) => Ok(Some(stream)),
        Err(error) if is_missing(&error.kind()) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

async fn consumer(bus: &Bus, spec: &ConsumerSpec) -> Result<Option<consumer::Config>, Cause> {
    let handle = bus.jetstream().get_stream_no_info(spec.stream).await?;
    match handle.consumer_info(spec.name()).await {
        Ok(info) => Ok(Some(info.config)),
        Err(error) if is_consumer_missing(&error.kind()) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn is_consumer_missing(kind: &ConsumerInfoErrorKind) -> bool {
    matches!(kind, ConsumerInfoErrorKind::NotFound | ConsumerInfoErrorKind::StreamNotFound)
}
