//! Creates missing streams and consumers on the server.

use async_nats::jetstream::{self, ErrorCode, context::GetStreamErrorKind, stream::ConsumerErrorKind};
use bus::{Bus, WorkQueue};
use invariant::impossible;
use serde_json::{Map, Value};
use tracing::{info, warn};

use crate::{ConsumerSpec, Topology};

/// A deviation of the server from the topology.
#[derive(Debug, Clone, PartialEq)]
pub struct Difference {
    /// `stream NAME` or `consumer STREAM/NAME`.
    pub what: String,
    /// Name of the field that differs.
    pub field: String,
    /// Value in the topology.
    pub wanted: Value,
    /// Value on the server.
    pub found: Value,
}

impl Difference {
    pub(crate) fn missing(what: String) -> Self {
        Self { what, field: EXISTENCE.to_owned(), wanted: Value::Bool(true), found: Value::Null }
    }

    /// Whether the stream or consumer does not exist.
    pub fn is_missing(&self) -> bool {
        self.field == EXISTENCE
    }
}

/// Maximum number of times that nats-server is asked for a consumer; each waits for an answer for five seconds.
const ASKED_MAX: u32 = 6;

/// The field of a stream or consumer that does not exist.
const EXISTENCE: &str = "existence";

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_missing() {
            return write!(f, "{} does not exist", self.what);
        }
        write!(f, "{}: {} is {}, expected {}", self.what, self.field, self.found, self.wanted)
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{what} could not be {done}")]
pub struct TopologyError {
    what: String,
    done: &'static str,
    #[source]
    source: Box<dyn std::error::Error + Send + Sync>,
}

/// Creates what is missing and reports differences. Several processes may run it at the same time.
pub async fn ensure(bus: &Bus, topology: &Topology) -> Result<Vec<Difference>, TopologyError> {
    let mut differences = Vec::new();
    for config in &topology.streams {
        let found = ensure_stream(bus, config).await?;
        differences.extend(compare(&format!("stream {}", config.name), config, &found));
    }
    for spec in &topology.consumers {
        let found = ensure_consumer(bus, spec).await?;
        differences.extend(compare(&consumer_label(spec), &spec.config, &found));
    }
    report(&differences);
    Ok(differences)
}

/// Logs what differs on the server.
pub fn report(differences: &[Difference]) {
    for difference in differences {
        warn!(%difference, "the topology on the server differs and is left unchanged");
    }
}

/// Opens the queue of a durable consumer that [`ensure`] created. Asks again without an answer: a nats-server that
/// just restarted may give none.
pub async fn open(bus: &Bus, stream: &str, name: &str) -> Result<WorkQueue, TopologyError> {
    let failed = || TopologyError::at(format!("consumer {stream}/{name}"), "opened");
    let mut asked = 1;
    let consumer = loop {
        match bus.jetstream().get_consumer_from_stream(name, stream).await {
            Ok(consumer) => break consumer,
            Err(error) if error.kind() == ConsumerErrorKind::TimedOut && asked < ASKED_MAX => {
                warn!(
                    stream,
                    consumer = name,
                    asked,
                    "nats-server does not say what it has of a consumer, asking again"
                );
                asked += 1;
            }
            Err(source) => return Err(failed()(Box::new(source))),
        }
    };
    WorkQueue::open(bus, consumer).await.map_err(|source| failed()(Box::new(source)))
}

impl TopologyError {
    pub(crate) fn at(
        what: String,
        done: &'static str,
    ) -> impl FnOnce(Box<dyn std::error::Error + Send + Sync>) -> Self {
        move |source| Self { what, done, source }
    }
}

async fn ensure_stream(
    bus: &Bus,
    wanted: &jetstream::stream::Config,
) -> Result<jetstream::stream::Config, TopologyError> {
    let js = bus.jetstream();
    let what = || format!("stream {}", wanted.name);
    for _ in 0..3 {
        match js.get_stream(&wanted.name).await {
            Ok(stream) => return Ok(stream.cached_info().config.clone()),
            Err(error) if is_missing(&error.kind()) => {}
            Err(error) => return Err(TopologyError::at(what(), "read")(Box::new(error))),
        }
        match js.create_stream(wanted.clone()).await {
            Ok(stream) => {
                info!(stream = wanted.name, "created");
                return Ok(stream.cached_info().config.clone());
            }
            // Another service was first: check again.
            Err(error)
                if error.to_string().contains("10058") || error.to_string().contains("already in use") => {}
            Err(error) => return Err(TopologyError::at(what(), "created")(Box::new(error))),
        }
    }
    Err(TopologyError::at(what(), "created")("it was created and deleted repeatedly".into()))
}

pub(crate) fn is_missing(kind: &GetStreamErrorKind) -> bool {
    matches!(kind, GetStreamErrorKind::JetStream(error) if error.error_code() == ErrorCode::STREAM_NOT_FOUND)
}

pub(crate) fn consumer_label(spec: &ConsumerSpec) -> String {
    format!("consumer {}/{}", spec.stream, spec.name())
}

async fn ensure_consumer(
    bus: &Bus,
    spec: &ConsumerSpec,
) -> Result<jetstream::consumer::Config, TopologyError> {
    let what = || consumer_label(spec);
    let handle = bus
        .jetstream()
        .get_stream_no_info(spec.stream)
        .await
        .map_err(|source| TopologyError::at(what(), "read")(Box::new(source)))?;
    let found = handle
        .get_or_create_consumer(spec.name(), spec.config.clone())
        .await
        .map_err(|source| TopologyError::at(what(), "created")(Box::new(source)))?;
    Ok(found.cached_info().config.clone())
}

/// Fields that the topology sets and that differ on the server. Fields that only the server sets are ignored.
pub(crate) fn compare<W: serde::Serialize, F: serde::Serialize>(
    what: &str,
    wanted: &W,
    found: &F,
) -> Vec<Difference> {
    let (wanted, found) = (to_object(wanted), to_object(found));
    let differs = |(field, wanted): (&String, &Value)| {
        let found = found.get(field).cloned().unwrap_or(Value::Null);
        let same = *wanted == found || (is_empty(wanted) && is_empty(&found)) || field == "metadata";
        (!same).then(|| Difference {
            what: what.to_owned(),
            field: field.clone(),
            wanted: wanted.clone(),
            found,
        })
    };
    wanted.iter().filter_map(differs).collect()
}

fn to_object<T: serde::Serialize>(value: &T) -> Map<String, Value> {
    match serde_json::to_value(value) {
        Ok(Value::Object(map)) => map,
        Ok(other) => {
            impossible!("a configuration is the JSON value {other}");
            Map::new()
        }
        Err(error) => {
            impossible!("a configuration has no JSON form: {error}");
            Map::new()
        }
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Number(number) => number.as_i64().is_some_and(|n| n <= 0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Bool(true) => false,
    }
}
