//! Which files `forebay access apply` writes, and which servers it asks.

use std::path::PathBuf;

use access::SeedFolder;
use clap::Args;
use credentials::Server;
use settings::Settings;

use super::{Place, Seeds};
use crate::{
    failure::Failure,
    globals::{Globals, read_endpoints},
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
    pub(super) pids: Vec<u32>,
    /// Give the running nats-servers the accounts that have changed, without a reload, where users have JWTs
    #[arg(long)]
    pub(super) push: bool,
    /// Folder of nats-server for accounts, where users have JWTs [default: `accounts` beside the configuration]
    #[arg(long, value_name = "FOLDER")]
    pub(super) resolver_dir: Option<PathBuf>,
    /// URL of a nats-server to check; may be repeated, once for each server of a cluster [default: as --nats]
    #[arg(long = "server", value_name = "URL")]
    servers: Vec<String>,
}

/// What to write, and which servers read it.
pub(super) struct Target {
    pub(super) seeds: SeedFolder,
    pub(super) nats_config: PathBuf,
    pub(super) redis_acl: PathBuf,
    /// Processes of nats-server; none: print the commands.
    pub(super) pids: Vec<u32>,
    pub(super) urls: Vec<String>,
    /// Redis, if it runs beside and can be asked.
    pub(super) redis: Option<Server>,
}

impl Target {
    /// What the options name, or else what the farm of `forebay up --secure` has.
    pub(super) fn of(
        args: &ApplyArgs,
        place: &Place,
        globals: &Globals,
        settings: &Settings,
    ) -> Result<Self, Failure> {
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

    /// The paths of the files for the servers.
    pub(super) fn written(&self) -> [String; 2] {
        [&self.nats_config, &self.redis_acl].map(|path| path.display().to_string())
    }
}
