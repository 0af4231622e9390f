//! `forebay access apply`: writes what nats-server and Redis read, has nats-server read it, and checks each tenant.

use std::{path::PathBuf, process::ExitCode};

use access::{Access, Role, SeedFolder, Slot, Who, nats_config, probe, redis_acl, reload};
use clap::Args;
use credentials::{Credentials, PemFiles, Server};
use index::Index;
use serde_json::json;
use settings::Settings;

use super::{Place, Seeds, store::File};
use crate::{
    failure::{FAILED, Failure, UNREACHABLE, say},
    globals::{Globals, read_endpoints},
    replaced_file, stdout,
};

/// Options of `forebay access apply`.
#[derive(Debug, Args)]
pub(crate) struct ApplyArgs {
    #[command(flatten)]
    seeds: Seeds,
    /// File with accounts and users, which the configuration of nats-server includes [default: that of the farm]
    #[arg(long, value_name = "FILE")]
    nats_config: Option<PathBuf>,
    /// File with users of Redis, its `aclfile` [default: that of the farm]
    #[arg(long, value_name = "FILE")]
    redis_acl: Option<PathBuf>,
    /// Process id of a nats-server to reload; may be repeated. Without this option, print the commands instead [default:
    /// that of the farm]
    #[arg(long = "reload", value_name = "PID")]
    pids: Vec<u32>,
    /// URL of a nats-server to check; may be repeated, once for each server of a cluster [default: as --nats]
    #[arg(long = "server", value_name = "URL")]
    servers: Vec<String>,
}

/// What to write, and which servers read it.
struct Target {
    seeds: SeedFolder,
    nats_config: PathBuf,
    redis_acl: PathBuf,
    /// Processes of nats-server; none: print the commands.
    pids: Vec<u32>,
    urls: Vec<String>,
    /// Redis, if it runs beside and can be asked.
    redis: Option<Server>,
}

impl Target {
    fn of(args: &ApplyArgs, place: &Place, globals: &Globals, settings: &Settings) -> Result<Self, Failure> {
        let farm = if place.farm.is_some() { read_endpoints(&settings.data)? } else { None };
        let mut pids = args.pids.clone();
        if pids.is_empty() {
            pids.extend(farm.as_ref().and_then(|farm| farm.processes.get("nats-server")));
        }
        let urls = match (args.servers.as_slice(), &farm) {
            ([], Some(farm)) => vec![farm.nats.clone()],
            ([], None) => globals.nats_url(settings)?.split(',').map(|url| url.trim().to_owned()).collect(),
            (given, _) => given.to_vec(),
        };
        Ok(Self {
            seeds: SeedFolder::new(&place.path(args.seeds.seeds.clone(), "--seeds", "secure/seeds")?),
            nats_config: place.path(args.nats_config.clone(), "--nats-config", "nats/users.conf")?,
            redis_acl: place.path(args.redis_acl.clone(), "--redis-acl", "redis/users.acl")?,
            pids,
            urls,
            redis: farm.map(|farm| Server::redis_of(&farm)),
        })
    }

    fn written(&self) -> [String; 2] {
        [&self.nats_config, &self.redis_acl].map(|path| path.display().to_string())
    }
}

/// Applies the description to the servers.
pub(super) async fn run(
    file: &File,
    args: &ApplyArgs,
    place: &Place,
    globals: &Globals,
    settings: &Settings,
) -> Result<ExitCode, Failure> {
    let access = file.read()?;
    let target = Target::of(args, place, globals, settings)?;
    let tls = globals.nats_server(settings).unwrap_or_else(|_| settings.nats("operator")).credentials.tls;
    // Before anything is written.
    let monitor =
        if target.pids.is_empty() { None } else { Some(monitor(&access, &target.seeds, tls.clone())?) };
    replaced_file::replace(&target.nats_config, &nats_config(&access))?;
    replaced_file::replace(&target.redis_acl, &redis_acl(&access))?;
    let Some(monitor) = monitor else { return next_steps(&target, globals) };
    let server = Server { url: target.urls.first().cloned().unwrap_or_default(), credentials: monitor };
    let reloaded = reload(&target.pids, &server).await;
    reloaded.map_err(|error| Failure::of(UNREACHABLE, &error))?;
    if let Some(redis) = &target.redis {
        let index = Index::connect(redis, false).await.map_err(|error| Failure::of(UNREACHABLE, &error))?;
        index.load_users().await.map_err(|error| Failure::of(UNREACHABLE, &error))?;
    }
    let findings = probe(&access, &target.seeds, &target.urls, &tls).await;
    report(&target, &findings, globals)
}

/// Says what was done, and which users do not reach the farm.
fn report(target: &Target, findings: &[access::Finding], globals: &Globals) -> Result<ExitCode, Failure> {
    let findings: Vec<String> = findings.iter().map(|finding| telemetry::error_chain(finding)).collect();
    if globals.json {
        let (written, pids, urls) = (target.written(), &target.pids, &target.urls);
        stdout::json(
            &json!({ "written": written, "reloaded": pids, "checked": urls, "findings": findings }),
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
    say(match target.redis {
        Some(_) => "all users of tenants reach the farm",
        None => "all users of tenants reach the farm; for Redis, run `ACL LOAD` as operator",
    });
    Ok(ExitCode::SUCCESS)
}

/// The credentials of a user of the system account, who sees when servers have read their configuration.
fn monitor(access: &Access, seeds: &SeedFolder, tls: PemFiles) -> Result<Credentials, Failure> {
    let monitors = access.services().keys().filter(|service| service.role() == Role::Monitor);
    for service in monitors {
        let who = Who::Service(service.clone());
        if seeds.read(&who, Slot::Current).map_err(|error| Failure::of(FAILED, &error))?.is_some() {
            return Ok(Credentials { seed: Some(seeds.path(&who, Slot::Current)), tls });
        }
    }
    Err(Failure::usage(
        "no seed of a monitor, who sees whether nats-server has reloaded: run `forebay access init` with the same --seeds",
    ))
}

fn next_steps(target: &Target, globals: &Globals) -> Result<ExitCode, Failure> {
    let reload = "nats-server --signal reload=PID";
    if globals.json {
        let written = target.written();
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
