//! `forebay topology`: prints or checks streams, buckets and consumers.

use std::process::ExitCode;

use clap::Args;
use jetstream::{Difference, Topology};
use serde_json::{Value, json};
use settings::Settings;

use crate::{
    failure::{FAILED, Failure, UNREACHABLE},
    farm::Farm,
    globals::Globals,
    stdout,
};

/// Options of `forebay topology`.
#[derive(Debug, Args)]
pub(crate) struct TopologyArgs {
    /// Print YAML with the field names of the server
    #[arg(long, conflicts_with = "check")]
    yaml: bool,
    /// Compare with the server without changing it; exit with 1 if they differ
    #[arg(long)]
    check: bool,
}

/// Prints the topology of the settings, or compares the server with it.
pub(crate) async fn run(
    args: &TopologyArgs,
    globals: &Globals,
    settings: &Settings,
) -> Result<ExitCode, Failure> {
    let topology = Topology::new(&settings.topology());
    if args.check {
        return check(&topology, globals, settings).await;
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

async fn check(topology: &Topology, globals: &Globals, settings: &Settings) -> Result<ExitCode, Failure> {
    let farm = Farm::connect(globals, settings).await?;
    let differences = jetstream::check(farm.client().bus(), topology).await;
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
