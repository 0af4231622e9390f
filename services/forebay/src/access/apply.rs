//! `forebay access apply`: writes what nats-server and Redis read, has nats-server read it, and checks each tenant.

use std::process::ExitCode;

use access::{Access, Role, SeedFolder, Slot, Who, nats_config, probe, redis_acl, reload};
use command_line::{
    failure::{FAILED, Failure, UNREACHABLE, say},
    globals::Globals,
    stdout,
};
use credentials::{Credentials, PemFiles, Server};
use serde_json::json;
use settings::Settings;

use super::{
    Place, signed,
    store::File,
    target::{ApplyArgs, Target, redis_line},
};
use crate::replaced_file;

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
    if access.jwt().is_some() {
        if !args.pids.is_empty() {
            let reason =
                "--reload is for descriptions without JWTs: --push gives running servers what has changed";
            return Err(Failure::usage(reason));
        }
        let apply =
            signed::Apply { target: &target, tls, push: args.push, accounts: args.resolver_dir.as_deref() };
        return apply.run(file, globals).await;
    }
    if args.push || args.resolver_dir.is_some() {
        let reason = "--push and --resolver-dir are for descriptions whose users have JWTs: `forebay access init --jwt`";
        return Err(Failure::usage(reason));
    }
    // Before anything is written.
    let monitor =
        if target.pids.is_empty() { None } else { Some(monitor(&access, &target.seeds, tls.clone())?) };
    replaced_file::replace(&target.nats_config, &nats_config(&access))?;
    replaced_file::replace(&target.redis_acl, &redis_acl(&access))?;
    let Some(monitor) = monitor else { return next_steps(&target, globals) };
    let server = Server { url: target.urls.first().cloned().unwrap_or_default(), credentials: monitor };
    let reloaded = reload(&target.pids, &server).await;
    reloaded.map_err(|error| Failure::of(UNREACHABLE, &error))?;
    let has_redis = target.load_users(&access, &tls).await?;
    let findings = probe(&access, &target.seeds, &target.urls, &tls).await;
    report(&target, &findings, has_redis, globals)
}

/// Says what was done, and which users do not reach the farm.
fn report(
    target: &Target,
    findings: &[access::Finding],
    has_redis: bool,
    globals: &Globals,
) -> Result<ExitCode, Failure> {
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
    say(&format!("all users of tenants reach the farm{}", redis_line(has_redis)));
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
        "written; run these commands, or this one with --reload PID and --redis URL, which also checks each user of each tenant",
    );
    Ok(ExitCode::SUCCESS)
}
