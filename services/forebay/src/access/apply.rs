//! `forebay access apply`: writes what nats-server and Redis read, has nats-server read it, and checks each tenant.

use std::{path::PathBuf, process::ExitCode};

use access::{Access, SeedFolder, Slot, Who, inbox_of, nats_config, probe, redis_acl, reload};
use bus::Credentials;
use clap::Args;
use serde_json::json;
use settings::Settings;

use super::{Seeds, store::File};
use crate::{
    failure::{FAILED, Failure, UNREACHABLE, say},
    globals::Globals,
    replaced_file, stdout,
};

/// Options of `forebay access apply`.
#[derive(Debug, Args)]
pub(crate) struct ApplyArgs {
    #[command(flatten)]
    seeds: Seeds,
    /// File with accounts and users, which the configuration of nats-server includes
    #[arg(long, value_name = "FILE")]
    nats_config: PathBuf,
    /// File with users of Redis, its `aclfile`
    #[arg(long, value_name = "FILE")]
    redis_acl: PathBuf,
    /// Process id of a nats-server to reload; may be repeated. Without this option, print the commands instead
    #[arg(long = "reload", value_name = "PID")]
    pids: Vec<u32>,
    /// URL of a nats-server to check; may be repeated, once for each server of a cluster [default: as --nats]
    #[arg(long = "server", value_name = "URL")]
    servers: Vec<String>,
}

/// Applies the description to the servers.
pub(super) async fn run(
    file: &File,
    args: &ApplyArgs,
    globals: &Globals,
    settings: &Settings,
) -> Result<ExitCode, Failure> {
    let access = file.read()?;
    let seeds = SeedFolder::new(&args.seeds.seeds);
    // Before anything is written.
    let monitor = if args.pids.is_empty() { None } else { Some(monitor(&access, &seeds)?) };
    replaced_file::replace(&args.nats_config, &nats_config(&access))?;
    replaced_file::replace(&args.redis_acl, &redis_acl(&access))?;
    let Some(monitor) = monitor else { return next_steps(args, globals) };
    let urls = if args.servers.is_empty() {
        globals.nats_url(settings)?.split(',').map(|url| url.trim().to_owned()).collect()
    } else {
        args.servers.clone()
    };
    let reloaded = reload(&args.pids, urls.first().map_or("", String::as_str), &monitor).await;
    reloaded.map_err(|error| Failure::of(UNREACHABLE, &error))?;
    let findings = probe(&access, &seeds, &urls).await;
    let findings: Vec<String> = findings.iter().map(|finding| telemetry::error_chain(finding)).collect();
    if globals.json {
        let written = [&args.nats_config, &args.redis_acl].map(|path| path.display().to_string());
        stdout::json(
            &json!({ "written": written, "reloaded": args.pids, "checked": urls, "findings": findings }),
        )?;
    }
    for finding in &findings {
        say(finding);
    }
    if !findings.is_empty() {
        let advice = "users of tenants do not reach the farm: run `forebay access apply` once more; if this stays, restart \
                      the nats-server";
        return Err(Failure::plain(FAILED, advice));
    }
    say("all users of tenants reach the farm; for Redis, run `ACL LOAD` as operator");
    Ok(ExitCode::SUCCESS)
}

/// The credentials of a user of the system account, who sees when servers have read their configuration.
fn monitor(access: &Access, seeds: &SeedFolder) -> Result<Credentials, Failure> {
    let monitors = access.services().keys().filter(|service| service.role() == "monitor");
    for service in monitors {
        let seed = seeds.read(&Who::Service(service.clone()), Slot::Current);
        if let Some(seed) = seed.map_err(|error| Failure::of(FAILED, &error))? {
            return Ok(Credentials { seed: seed.reveal().to_owned(), inbox: inbox_of(service) });
        }
    }
    Err(Failure::usage(
        "no seed of a monitor, who sees whether nats-server has reloaded: run `forebay access init` with the same --seeds",
    ))
}

fn next_steps(args: &ApplyArgs, globals: &Globals) -> Result<ExitCode, Failure> {
    let reload = "nats-server --signal reload=PID";
    if globals.json {
        let written = [&args.nats_config, &args.redis_acl].map(|path| path.display().to_string());
        let commands = [reload, reload, "redis-cli ACL LOAD"];
        stdout::json(&json!({ "written": written, "commands": commands }))?;
    } else {
        stdout::line(&format!("{reload} && sleep 1 && {reload}"))?;
        stdout::line("redis-cli ACL LOAD")?;
    }
    say(
        "written; run these commands, or this one with --reload PID, which also checks each user of each tenant",
    );
    Ok(ExitCode::SUCCESS)
}
