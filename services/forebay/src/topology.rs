//! `forebay topology`

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
    /// Print it as YAML, with the server's own field names
    #[arg(long, conflicts_with = "check")]
    yaml: bool,
    /// Compare the server with it, changing nothing; exits with 1 where they differ
    #[arg(long)]
    check: bool,
}

/// Prints or checks the topology that the settings ask for.
pub(crate) async fn run(
    args: &TopologyArgs,
    globals: &Globals,
    settings: &Settings,
) -> Result<ExitCode, Failure> {
    let topology = Topology::new(settings);
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
        stdout::line("the server is as it should be")?;
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
