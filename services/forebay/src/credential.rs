//! `forebay credential`: makes API keys for callers of gateways, and says what a credential may do.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::SystemTime,
};

use callers::{AccessFileError, ApiKey, CallerSettings, Callers, Offered, Sessions};
use clap::{Args, Subcommand};
use command_line::{
    failure::{FAILED, Failure, USAGE},
    globals::Globals,
    stdout,
};
use model::AuditKind;
use policy::{
    access::{Right, Rights},
    zones::{ParseZoneError, Zones},
};
use serde::Serialize;
use settings::Settings;

use crate::{file_argument, replaced_file};

const EXAMPLES: &str = "\
Examples:
  forebay credential new ci > ci.key
      makes an API key, and adds its hash to the access rules; the key itself is printed once and stored nowhere
  forebay credential check - < ci.key
      shows the name, groups and rights of the caller with this key or token

The access rules are the file that the setting `gateway_access_file` names; docs/gateway-access.md describes them. To revoke a key,
delete its entry: gateways notice within a second.";

/// Options of `forebay credential`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CredentialArgs {
    #[command(subcommand)]
    command: CredentialCommand,
    /// File of the access rules [default: the setting `gateway_access_file`, else that of the farm of `forebay up --secure`]
    #[arg(long, value_name = "FILE", global = true)]
    rules: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum CredentialCommand {
    /// Make an API key and add it to the access rules
    New {
        /// Name by which rules mean the key, and which its builds have as their submitter
        name: String,
        /// Time from which it is not accepted, for example 2027-01-31T00:00:00Z [default: never]
        #[arg(long, value_name = "TIME")]
        expires: Option<String>,
    },
    /// Show which caller a key or token is, and its rights
    Check {
        /// File with the key or token; - is standard input
        file: PathBuf,
    },
}

/// Runs one of the subcommands.
pub(crate) async fn run(
    args: CredentialArgs,
    globals: &Globals,
    settings: &Settings,
) -> Result<ExitCode, Failure> {
    let file = args.rules.or_else(|| rules_file(settings)).ok_or_else(|| {
        Failure::usage("no access rules: set gateway_access_file, or use --rules".to_owned())
    })?;
    let file = file.as_path();
    let zones: Zones = settings
        .zones
        .parse()
        .map_err(|error: ParseZoneError| Failure::usage(format!("the setting zones: {error}")))?;
    match args.command {
        CredentialCommand::New { name, expires } => {
            new((file, &zones), &name, expires.as_deref())?;
            if settings.data.join("endpoints.json").exists() || globals.nats_is_named(settings) {
                let what = (AuditKind::Access, "forebay credential new");
                crate::audit::record(globals, settings, what, &format!("key:{name}"), "key made").await;
            }
        }
        CredentialCommand::Check { file: credential } => {
            check((file, zones), &credential, globals.json).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The access rules of gateways: the file of the setting, else that of the farm of `forebay up --secure` in the data folder.
pub(crate) fn rules_file(settings: &Settings) -> Option<PathBuf> {
    let of_farm = settings.data.join("secure/rules.toml");
    settings.gateway_access_file.clone().or_else(|| of_farm.exists().then_some(of_farm))
}

fn new((file, zones): (&Path, &Zones), name: &str, expires: Option<&str>) -> Result<(), Failure> {
    let key = ApiKey::generate().map_err(|error| Failure::new(FAILED, "cannot make a key", &error))?;
    let expires = expires.map(|time| format!("expires = {time:?}\n")).unwrap_or_default();
    let entry = format!("\n[[keys]]\nname = {name:?}\nsha256 = \"{}\"\n{expires}", key.hash());
    // Two commands at the same time both add their keys.
    let _lock = replaced_file::lock(file)?;
    let before = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => {
            let what = format!("cannot read the access rules {}", file.display());
            return Err(Failure::new(USAGE, what, &error));
        }
    };
    let text = format!("{before}{entry}");
    let checked = Callers::check_rules(file, &text, zones);
    let keys = checked.map_err(|error| Failure::usage(telemetry::error_chain(&error)))?;
    if keys.iter().filter(|key| key.name == name).count() > 1 {
        let exists = format!("there is a key {name} already: choose another name, or delete its entry");
        return Err(Failure::usage(exists));
    }
    let now = SystemTime::now();
    if keys.iter().any(|key| key.name == name && key.expires.is_some_and(|at| at <= now)) {
        let past = format!("the time of --expires has passed: key {name} would not be accepted");
        return Err(Failure::usage(past));
    }
    replaced_file::replace(file, &text)?;
    eprintln!("key {name} is in {}; rules with key = {name:?} give it rights", file.display());
    stdout::line(key.reveal())
}

/// A caller, for programs.
#[derive(Debug, Serialize)]
struct Shown<'a> {
    name: &'a str,
    groups: String,
    /// Absent in a farm without zones.
    #[serde(skip_serializing_if = "Option::is_none")]
    zone: Option<String>,
    rights: Vec<&'static str>,
    priorities: Vec<&'static str>,
}

/// The callers of a file of rules, as gateways read it; sessions of people are those of this process.
pub(crate) fn callers_of(file: &Path, zones: Zones) -> Result<Callers, AccessFileError> {
    let settings = CallerSettings { zones, sessions: Sessions::unshared(), ..CallerSettings::default() };
    Callers::of_file(file, settings)
}

async fn check((file, zones): (&Path, Zones), credential: &Path, json: bool) -> Result<(), Failure> {
    let has_zones = zones.are_used();
    let callers = callers_of(file, zones).map_err(|error| Failure::usage(telemetry::error_chain(&error)))?;
    let text = file_argument::text(credential).map_err(|error| {
        Failure::new(USAGE, format!("cannot read the credential {}", credential.display()), &error)
    })?;
    let header = format!("Bearer {}", text.trim());
    let offered = Offered { authorization: Some(header.as_bytes()), ..Offered::default() };
    let caller = callers.identify(offered).await.map_err(|refusal| {
        let why = refusal.detail().unwrap_or_default();
        Failure::plain(USAGE, format!("{refusal}: {why}"))
    })?;
    let Rights { rights, groups, priorities, zone, limits: _ } = &*caller.rights;
    let shown = Shown {
        name: &caller.name,
        groups: groups.to_string(),
        zone: has_zones.then(|| zone.to_string()),
        rights: rights.iter().map(|right: &Right| right.as_str()).collect(),
        priorities: priorities.iter().map(|priority| priority.as_str()).collect(),
    };
    if json {
        return stdout::json(&shown);
    }
    stdout::line(&format!(
        "caller      {}\ngroups      {}\n{}rights      {}\npriorities  {}",
        shown.name,
        shown.groups,
        shown.zone.as_ref().map(|zone| format!("zone        {zone}\n")).unwrap_or_default(),
        shown.rights.join(", "),
        shown.priorities.join(", ")
    ))
}
