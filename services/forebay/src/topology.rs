//! `forebay topology`: prints, checks or creates streams, buckets and consumers.

use std::process::ExitCode;

use clap::Args;
use command_line::{
    failure::{FAILED, Failure, UNREACHABLE},
    globals::Globals,
    stdout,
};
use jetstream::{Difference, Topology};
use serde_json::{Value, json};
use settings::Settings;

use crate::farm::Farm;

/// Options of `forebay topology`.
#[derive(Debug, Args)]
pub(crate) struct TopologyArgs {
    /// Print YAML with the field names of the server
    #[arg(long, conflicts_with = "check")]
    yaml: bool,
    /// Compare with the server without changing it; exit with 1 if they differ
    #[arg(long)]
    check: bool,
    /// Create what the server lacks; exit with 1 if something else differs. `forebay up` does this, services do not
    #[arg(long, conflicts_with_all = ["check", "yaml"])]
    apply: bool,
}

/// Prints the topology of the settings, or compares the server with it, or creates it there.
pub(crate) async fn run(
    args: &TopologyArgs,
    globals: &Globals,
    settings: &Settings,
) -> Result<ExitCode, Failure> {
    let topology = Topology::new(&settings.topology());
    if args.check || args.apply {
        return compare(&topology, args.apply, globals, settings).await;
    }
    let yaml = jetstream::to_yaml(&topology);
    if args.yaml {
        stdout::bytes(yaml.as_bytes())?;
    } else if globals.json {
        let value: Value = serde_norway::from_str(&yaml)
            .map_err(|error| Failure::new(FAILED, "cannot print the topology as JSON", &error))?;
        stdout::json(&value)?;
    } else {
        stdout::bytes(jetstream::to_table(&topology).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Compares the server with the topology, after creating what is missing if `create` is set.
async fn compare(
    topology: &Topology,
    create: bool,
    globals: &Globals,
    settings: &Settings,
) -> Result<ExitCode, Failure> {
    let farm = Farm::connect(globals, settings).await?;
    let bus = farm.client().bus();
    let differences =
        if create { jetstream::ensure(bus, topology).await } else { jetstream::check(bus, topology).await };
    let differences =
        differences.map_err(|error| Failure::plain(UNREACHABLE, telemetry::error_chain(&error)))?;
    if globals.json {
        stdout::json(&differences.iter().map(as_json).collect::<Vec<_>>())?;
    } else if differences.is_empty() {
        stdout::line("the server matches the topology")?;
    } else {
        for difference in &differences {
            stdout::line(&difference.to_string())?;
        }
    }
    Ok(if differences.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

fn as_json(difference: &Difference) -> Value {
    let Difference { what, field, wanted, found } = difference;
    json!({ "what": what, "field": field, "wanted": wanted, "found": found })
}
