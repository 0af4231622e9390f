//! Which files `forebay access apply` writes, and which servers it asks.

use std::path::PathBuf;

use access::{Access, Role, SeedFolder, Slot, Who};
use clap::Args;
use command_line::{
    failure::{Failure, UNREACHABLE},
    globals::{Globals, read_endpoints},
};
use credentials::{Credentials, PemFiles, Server};
use index::Index;
use settings::Settings;

use super::{Place, Seeds};

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
    /// Redis, if the farm or the settings name it.
    redis: Option<String>,
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
            redis: match farm {
                Some(farm) => Some(farm.redis),
                None => globals.redis().or_else(|| {
                    let is_set = settings.redis_url != Settings::default().redis_url;
                    is_set.then(|| settings.redis_url.clone())
                }),
            },
        })
    }

    /// Has Redis read its users again; whether it is named, and an operator has a seed here.
    pub(super) async fn load_users(&self, access: &Access, tls: &PemFiles) -> Result<bool, Failure> {
        let Some(redis) = self.redis(access, tls) else { return Ok(false) };
        let shown = redis.shown();
        let loaded = async { Index::connect(redis, false).await?.load_users().await };
        loaded.await.map(|()| true).map_err(|error| {
            let what = format!(
                "Redis at {shown} has not read its users again, and knows the former ones: run this command once more, or \
                 restart Redis if it does not know this operator yet"
            );
            Failure::new(UNREACHABLE, what, &error)
        })
    }

    /// Redis, as an operator of the description.
    fn redis(&self, access: &Access, tls: &PemFiles) -> Option<Server> {
        let operators = access.services().keys().filter(|service| service.role() == Role::Operator);
        let mut operators = operators.map(|operator| Who::Service(operator.clone()));
        let operator = operators.find(|who| matches!(self.seeds.read(who, Slot::Current), Ok(Some(_))))?;
        let seed = self.seeds.path(&operator, Slot::Current);
        Some(Server {
            url: self.redis.clone()?,
            credentials: Credentials { seed: Some(seed), tls: tls.clone() },
        })
    }

    /// The paths of the files for the servers.
    pub(super) fn written(&self) -> [String; 2] {
        [&self.nats_config, &self.redis_acl].map(|path| path.display().to_string())
    }
}

/// Whether Redis knows the users, for the last line of the command.
pub(super) fn redis_line(has_redis: bool) -> &'static str {
    if has_redis {
        ", and Redis has read its users"
    } else {
        "; name Redis with --redis, so that it reads its users too: until then it knows the former ones"
    }
}
