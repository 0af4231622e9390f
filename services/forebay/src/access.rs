//! `forebay access`: who may use the bus and the index of a farm, and for what.

mod apply;
mod change;
mod show;
mod signed;
mod store;
mod target;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use ::access::{AccountName, ServiceName, SigningStep, TenantName, UserOf, Who};
use clap::{Args, Subcommand};
use command_line::{failure::Failure, globals::Globals};
use model::{AuditKind, Group, Priority};
use settings::Settings;

pub(crate) use target::ApplyArgs;

const EXAMPLES: &str = "\
Examples:
  forebay access init --seeds seeds
      writes access.toml with a user for each service, and a file in `seeds` with the secret key of each
  forebay access grant tenant payments --group payments --priority automated --priority batch
  forebay access grant publisher payments/ci --seeds seeds
      the tenant payments, and a user of it, who publishes builds of its groups with its priorities
  forebay access apply --seeds seeds --nats-config users.conf --redis-acl users.acl --reload $(pgrep nats-server)
      writes what nats-server and Redis read, has nats-server read it, and checks each user of each tenant

With JWTs, whose accounts change without a reload:
  forebay access init --jwt --seeds seeds
  forebay access apply --seeds seeds --nats-config users.conf --redis-acl users.acl --push
      writes these files, and seeds/ROLE.NAME.creds with the JWT and the secret key of each user; gives running servers the accounts

On the machine of `forebay up --secure`, omit the files: `forebay access grant tenant payments --group payments`, then
`forebay access apply`.

NAME is TENANT, TENANT/USER, or ROLE/NAME for a service: gateway/1, worker/ID, executor/ID.";

/// Options of `forebay access`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct AccessArgs {
    /// The description of all users [default: that of the farm that `forebay up --secure` runs in
    /// the data folder, else access.toml]
    #[arg(long, global = true, value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(subcommand)]
    command: AccessCommand,
}

/// Where secret keys are.
#[derive(Debug, Args)]
pub(crate) struct Seeds {
    /// Folder with the secret key of each user, in a file that only its owner can read [default: that of the farm]
    #[arg(long, value_name = "FOLDER")]
    seeds: Option<PathBuf>,
}

/// Options of `forebay access init`.
#[derive(Debug, Args)]
struct InitArgs {
    #[command(flatten)]
    seeds: Seeds,
    /// Give users JWTs, which an operator and accounts sign: accounts change without a reload of nats-server, and JWTs expire
    #[arg(long)]
    jwt: bool,
    /// Days for which JWTs of users of tenants are valid; 0: they do not expire [default: 365]
    #[arg(long, value_name = "DAYS", requires = "jwt")]
    user_days: Option<u32>,
    /// Days for which JWTs of services are valid; 0: they do not expire [default: 0]
    #[arg(long, value_name = "DAYS", requires = "jwt")]
    service_days: Option<u32>,
}

#[derive(Debug, Subcommand)]
enum AccessCommand {
    /// Write a description with a user for each service; an existing one gets those that it lacks
    Init(InitArgs),
    /// Add a tenant, a user or a service, or change what it may do
    #[command(subcommand)]
    Grant(Grant),
    /// Remove a tenant with its users, a user, or a service
    Revoke {
        /// The tenant, user or service to remove
        name: Who,
        #[command(flatten)]
        seeds: Seeds,
    },
    /// Replace the key of a user: a new one beside the old one, then, with --finish, without the old one
    Rotate {
        #[command(flatten)]
        key: RotatedKey,
        /// Remove the old key, once the new one is in use
        #[arg(long)]
        finish: bool,
        /// Remove the new signing key instead of the old one
        #[arg(long, conflicts_with = "finish")]
        cancel: bool,
        #[command(flatten)]
        seeds: Seeds,
    },
    /// List tenants, their users, and services
    List,
    /// Show what a tenant, a user or a service may do
    Show {
        /// The tenant, user or service to show
        name: Who,
    },
    /// Write the configuration of nats-server and the users of Redis, and check the running servers
    Apply(ApplyArgs),
}

/// The key that `forebay access rotate` replaces.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct RotatedKey {
    /// The user or service whose key to replace
    name: Option<Who>,
    /// With JWTs: the account whose signing key to replace, FARM, SYS or `TENANT_NAME`
    #[arg(long, value_name = "ACCOUNT")]
    signing_key: Option<AccountName>,
}

#[derive(Debug, Subcommand)]
enum Grant {
    /// Add a tenant, or add to its groups and priorities
    Tenant {
        /// Name of the tenant
        name: TenantName,
        /// Group that belongs to this tenant only; may be repeated
        #[arg(long = "group", value_name = "GROUP")]
        groups: Vec<Group>,
        /// Priority with which it may publish builds; may be repeated; all for a new tenant without this option
        #[arg(long = "priority", value_name = "PRIORITY")]
        priorities: Vec<Priority>,
        /// Group of another tenant that its users may watch; may be repeated
        #[arg(long = "watch", value_name = "GROUP")]
        watches: Vec<Group>,
        #[command(flatten)]
        seeds: Seeds,
    },
    /// Add a user who publishes builds and sees them, or replace what it may do
    Publisher {
        /// Name of the user, as TENANT/USER
        name: UserOf,
        /// Group of the tenant; may be repeated; all without this option
        #[arg(long = "group", value_name = "GROUP")]
        groups: Vec<Group>,
        /// Priority of the tenant; may be repeated; all without this option
        #[arg(long = "priority", value_name = "PRIORITY")]
        priorities: Vec<Priority>,
        #[command(flatten)]
        seeds: Seeds,
    },
    /// Add a user who sees builds, or replace what it may see
    Watcher {
        /// Name of the user, as TENANT/USER
        name: UserOf,
        /// Group that the tenant has or watches; may be repeated; all without this option
        #[arg(long = "group", value_name = "GROUP")]
        groups: Vec<Group>,
        #[command(flatten)]
        seeds: Seeds,
    },
    /// Add a process of the farm, or an operator
    Service {
        /// Name of the service, as ROLE/NAME; workers and executors by their ids
        name: ServiceName,
        #[command(flatten)]
        seeds: Seeds,
    },
}

impl Grant {
    /// The name and what it is given, for the record of operators.
    fn described(&self) -> (String, String) {
        match self {
            Self::Tenant { name, groups, priorities, watches, .. } => {
                let given =
                    [list("groups", groups), list("priorities", priorities), list("watches", watches)];
                (name.to_string(), format!("tenant{}", given.concat()))
            }
            Self::Publisher { name, groups, priorities, .. } => {
                let given = [list("groups", groups), list("priorities", priorities)];
                (name.to_string(), format!("publisher{}", given.concat()))
            }
            Self::Watcher { name, groups, .. } => {
                (name.to_string(), format!("watcher{}", list("groups", groups)))
            }
            Self::Service { name, .. } => (name.to_string(), "service".to_owned()),
        }
    }
}

/// `, WHAT ITEM ITEM`; empty without items.
fn list(what: &str, items: &[impl ToString]) -> String {
    let items: Vec<String> = items.iter().map(ToString::to_string).collect();
    if items.is_empty() { String::new() } else { format!(", {what} {}", items.join(" ")) }
}

/// Where the files of a description are.
struct Place {
    file: PathBuf,
    /// The data folder of the farm, if the description is that of a farm of `forebay up --secure`.
    farm: Option<PathBuf>,
}

impl Place {
    fn of(file: Option<PathBuf>, data: &Path) -> Self {
        let of_farm = data.join("secure/access.toml");
        match file {
            Some(file) => Self { file, farm: None },
            None if of_farm.exists() => Self { file: of_farm, farm: Some(data.to_owned()) },
            None => Self { file: PathBuf::from("access.toml"), farm: None },
        }
    }

    /// A path that an option names, else that of the farm.
    fn path(&self, given: Option<PathBuf>, option: &str, of_farm: &str) -> Result<PathBuf, Failure> {
        let known = given.or_else(|| self.farm.as_ref().map(|farm| farm.join(of_farm)));
        known.ok_or_else(|| {
            Failure::usage(format!(
                "{option} is missing: no farm of `forebay up --secure` is in the data folder"
            ))
        })
    }

    fn seeds(&self, seeds: Seeds) -> Result<PathBuf, Failure> {
        self.path(seeds.seeds, "--seeds", "secure/seeds")
    }
}

impl AccessArgs {
    /// Whether the command needs the settings: for the servers of a farm, or for its folder.
    pub(crate) fn asks_a_farm(&self) -> bool {
        if self.file.is_none() {
            return true;
        }
        match &self.command {
            AccessCommand::Apply(_) => true,
            AccessCommand::Init(_)
            | AccessCommand::Grant(_)
            | AccessCommand::Revoke { .. }
            | AccessCommand::Rotate { .. }
            | AccessCommand::List
            | AccessCommand::Show { .. } => false,
        }
    }
}

/// Changes, shows or applies the description.
pub(crate) async fn run(
    args: AccessArgs,
    globals: &Globals,
    settings: &Settings,
) -> Result<ExitCode, Failure> {
    let place = Place::of(args.file, &settings.data);
    let file = store::File::new(place.file.clone());
    let is_of_a_farm = place.farm.is_some() || globals.nats_is_named(settings);
    let record = async |call: &str, target: &str, change: &str| {
        if is_of_a_farm {
            crate::audit::record(globals, settings, (AuditKind::Access, call), target, change).await;
        }
    };
    match args.command {
        AccessCommand::Init(args) => change::init(&file, args, &place, globals.json)?,
        AccessCommand::Grant(grant) => {
            let (target, change) = grant.described();
            if change::grant(&file, grant, &place, globals.json)? {
                record("forebay access grant", &target, &change).await;
            }
        }
        AccessCommand::Revoke { name, seeds } => {
            let target = name.to_string();
            if change::revoke(&file, name, &place.seeds(seeds)?, globals.json)? {
                record("forebay access revoke", &target, "removed").await;
            }
        }
        AccessCommand::Rotate { key, finish, cancel, seeds } => {
            let (change, step) = match (finish, cancel) {
                (true, _) => ("old key removed", SigningStep::Finish),
                (false, true) => ("new key removed", SigningStep::Cancel),
                (false, false) => ("new key made", SigningStep::Begin),
            };
            let seeds = place.seeds(seeds)?;
            let (target, is_new) = match (key.name, key.signing_key) {
                (Some(_), _) if cancel => {
                    return Err(Failure::usage("--cancel is for signing keys: give --signing-key ACCOUNT"));
                }
                (Some(name), _) => {
                    (name.to_string(), change::rotate(&file, &name, finish, &seeds, globals.json)?)
                }
                (None, Some(account)) => {
                    let is_new = change::rotate_signing(&file, &account, step, &seeds, globals.json)?;
                    (format!("signing key of {account}"), is_new)
                }
                (None, None) => return Err(Failure::usage("name a user, or an account with --signing-key")),
            };
            if is_new {
                record("forebay access rotate", &target, change).await;
            }
        }
        AccessCommand::List => show::list(&file.read()?, globals.json)?,
        AccessCommand::Show { name } => show::one(&file.read()?, &name, globals.json)?,
        AccessCommand::Apply(args) => return apply::run(&file, &args, &place, globals, settings).await,
    }
    Ok(ExitCode::SUCCESS)
}
