//! Text formats of the topology.

use invariant::Present as _;
use serde_json::{Value, json};

use crate::Topology;

/// Formats the topology as YAML, with the server's own field names.
pub fn to_yaml(topology: &Topology) -> String {
    serde_norway::to_string(&to_value(topology)).present("the topology as YAML")
}

fn to_value(topology: &Topology) -> Value {
    let consumers: Vec<Value> = topology
        .consumers
        .iter()
        .map(|spec| json!({ "stream": spec.stream, "config": without_unset(json!(spec.config)) }))
        .collect();
    let streams: Vec<Value> = topology.streams.iter().map(|config| without_unset(json!(config))).collect();
    json!({ "streams": streams, "consumers": consumers })
}

/// Removes fields that are not set.
fn without_unset(value: Value) -> Value {
    let Value::Object(map) = value else { return value };
    let kept = map.into_iter().filter(|(_, value)| !value.is_null() && *value != json!([]));
    Value::Object(kept.collect())
}

/// Formats the topology as a text table.
pub fn to_table(topology: &Topology) -> String {
    let mut lines = vec![format!("{:<20} {:<10} {:>8}  SUBJECTS", "STREAM", "RETENTION", "MAX AGE")];
    for stream in &topology.streams {
        let retention = format!("{:?}", stream.retention).to_lowercase();
        let days = stream.max_age.as_secs() / 86_400;
        let age = if days == 0 { "-".to_owned() } else { format!("{days}d") };
        lines.push(format!("{:<20} {retention:<10} {age:>8}  {}", stream.name, stream.subjects.join(" ")));
    }
    lines.push(String::new());
    lines.push(format!("{:<22} {:<20} {:>8}  FILTER", "CONSUMER", "STREAM", "ACK WAIT"));
    for spec in &topology.consumers {
        let (name, wait) = (spec.name(), format!("{}s", spec.config.ack_wait.as_secs()));
        lines.push(format!("{name:<22} {:<20} {wait:>8}  {}", spec.stream, spec.config.filter_subject));
    }
    lines.join("\n") + "\n"
}
