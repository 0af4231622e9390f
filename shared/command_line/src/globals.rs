//! Options that every command accepts.

use std::path::{Path, PathBuf};

use bus::{Bus, Patience};
use clap::Args;
use credentials::Server;
use model::Endpoints;
use service::host_name;
use settings::{GatewayLogin, Settings};
use tracing::info;

use crate::{
    failure::{Failure, UNREACHABLE},
    wait::WaitLimit,
};

/// Role of people who use the command line.
const OPERATOR: &str = "operator";
const NATS_HELP: &str = "NATS URL [env: FOREBAY_NATS_URL] [default: from the running farm in the data folder, else \
    nats://127.0.0.1:4222]";
const REDIS_HELP: &str = "Redis URL [env: FOREBAY_REDIS_URL] [default: from the running farm in the data folder, else \
    redis://127.0.0.1:6379]";
const DATA_HELP: &str = "Data folder [env: FOREBAY_DATA] [default: ./forebay-data]";
const WAIT_HELP: &str = "How long to wait for an unavailable server or service, e.g. 30s or 5m; 0: do not wait; \
    forever: no limit. After that time, exit with code 4. Services and `up` wait without a limit unless this is 0. \
    [env: FOREBAY_WAIT] [default: 30s]";

/// Options that every command accepts.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Global options")]
pub struct Globals {
    // Without `env` of clap, which would show a set variable as required in the usage line.
    #[arg(long, help = NATS_HELP, value_name = "URL", global = true)]
    nats: Option<String>,
    #[arg(long, help = REDIS_HELP, value_name = "URL", global = true)]
    redis: Option<String>,
    #[arg(long, help = DATA_HELP, value_name = "DIR", global = true)]
    data: Option<PathBuf>,
    /// Settings file [default: ./forebay.toml if it exists]
    #[arg(long, value_name = "FILE", global = true)]
    config: Option<PathBuf>,
    #[arg(long, help = WAIT_HELP, value_name = "TIME", global = true)]
    wait: Option<WaitLimit>,
    /// Exit with code 4 if a server or service is unavailable instead of waiting; same as --wait 0
    #[arg(long, global = true, conflicts_with = "wait")]
    no_wait: bool,
    /// Print JSON instead of text
    #[arg(long, global = true)]
    pub json: bool,
}

impl Globals {
    /// How long to wait for servers and services, or the default.
    pub fn wait(&self) -> Result<WaitLimit, Failure> {
        Ok(self.chosen_wait()?.unwrap_or_default())
    }

    /// How long to wait, if an option or `FOREBAY_WAIT` sets it.
    pub fn chosen_wait(&self) -> Result<Option<WaitLimit>, Failure> {
        if self.no_wait {
            return Ok(Some(WaitLimit::NONE));
        }
        if self.wait.is_some() {
            return Ok(self.wait);
        }
        let said = variable("FOREBAY_WAIT");
        let parsed =
            said.map(|text| text.parse().map_err(|why| Failure::usage(format!("FOREBAY_WAIT: {why}"))));
        parsed.transpose()
    }

    /// Name of this farm for its user: the data folder if its endpoints.json names this NATS, else the URL of NATS.
    pub fn farm_name(&self, settings: &Settings) -> Result<String, Failure> {
        let url = self.nats_url(settings)?;
        let found = read_endpoints(&settings.data)?.filter(|endpoints| endpoints.nats == url);
        let folder = found.and_then(|_| settings.data.canonicalize().ok());
        Ok(folder.map_or(url, |folder| folder.display().to_string()))
    }

    fn nats(&self) -> Option<String> {
        self.nats.clone().or_else(|| variable("FOREBAY_NATS_URL"))
    }

    pub fn redis(&self) -> Option<String> {
        self.redis.clone().or_else(|| variable("FOREBAY_REDIS_URL"))
    }

    fn data(&self) -> Option<PathBuf> {
        self.data.clone().or_else(|| variable("FOREBAY_DATA").map(PathBuf::from))
    }

    /// The settings file, which need not exist unless `--config` names it.
    pub fn settings_file(&self) -> PathBuf {
        self.config.clone().unwrap_or_else(|| PathBuf::from("forebay.toml"))
    }

    /// Loads the settings. Precedence, lowest first: defaults, file, environment, flags. This process calls gateways
    /// with the credentials in them.
    pub fn settings(&self) -> Result<Settings, Failure> {
        let mut settings = Settings::load(&self.settings_file(), self.config.is_some())?;
        if let Some(url) = self.nats() {
            settings.nats_url = url;
        }
        if let Some(url) = self.redis() {
            settings.redis_url = url;
        }
        if let Some(folder) = self.data() {
            settings.data = folder;
        }
        let GatewayLogin { mut token, mut authorities, certificate } = settings.gateway_login();
        let named = self.nats().is_some();
        let chosen = self.endpoints(&settings, named, settings.nats_url != Settings::default().nats_url);
        // A folder without a farm is reported when a command needs the farm.
        if let Ok(Some(Endpoints { operator: Some(files), .. })) = chosen {
            token.get_or_insert_with(|| files.token.into());
            authorities.get_or_insert_with(|| files.authorities.into());
        }
        remote::log_in(remote::Login { token, authorities, certificate });
        Ok(settings)
    }

    /// NATS for a client. A URL from a flag, variable or file takes precedence over the data folder.
    pub fn nats_server(&self, settings: &Settings) -> Result<Server, Failure> {
        let named = self.nats().is_some();
        let found = self.endpoints(settings, named, settings.nats_url != Settings::default().nats_url)?;
        Ok(found.map_or_else(|| settings.nats(OPERATOR), |found| with_own(Server::nats_of(&found), settings)))
    }

    /// Whether an option or a setting names the nats-server of a farm.
    pub fn nats_is_named(&self, settings: &Settings) -> bool {
        self.nats().is_some() || settings.nats_url != Settings::default().nats_url
    }

    /// URL of NATS for a client.
    pub fn nats_url(&self, settings: &Settings) -> Result<String, Failure> {
        Ok(self.nats_server(settings)?.url)
    }

    /// Redis for a client.
    pub fn redis_server(&self, settings: &Settings) -> Result<Server, Failure> {
        let named = self.redis().is_some();
        let found = self.endpoints(settings, named, settings.redis_url != Settings::default().redis_url)?;
        Ok(found
            .map_or_else(|| settings.redis(OPERATOR), |found| with_own(Server::redis_of(&found), settings)))
    }

    /// URLs of NATS and Redis for a service. Explicit URLs take precedence over the data folder, which need
    /// not contain a farm.
    pub fn servers(&self, settings: &Settings) -> Result<(String, String), Failure> {
        let defaults = Settings::default();
        let found = read_endpoints(&settings.data)?;
        let choose = |named: bool, set: &str, default: &str, found: Option<String>| {
            let is_set = named || (set != default && self.data().is_none());
            found.filter(|_| !is_set).unwrap_or_else(|| set.to_owned())
        };
        let is_default = self.nats().is_none() && settings.nats_url == defaults.nats_url;
        if found.is_none() && self.data().is_some() && is_default {
            info!("{}; using {}", no_farm_in(&settings.data), settings.nats_url);
        }
        let (nats, redis) = found.map(|found| (found.nats, found.redis)).unzip();
        Ok((
            choose(self.nats().is_some(), &settings.nats_url, &defaults.nats_url, nats),
            choose(self.redis().is_some(), &settings.redis_url, &defaults.redis_url, redis),
        ))
    }

    /// URL of the Remote Execution API for a client: from the data folder, else of a gateway found on the bus, else the
    /// address of the settings.
    pub async fn grpc_url(&self, settings: &Settings) -> Result<String, Failure> {
        let nats = match self.nats_server(settings) {
            Ok(nats) => nats,
            // Without a farm in the data folder, the address in the settings is enough.
            Err(failure) => return chosen_grpc_url(settings).ok_or(failure),
        };
        if let Some(url) = known_grpc_url(settings, &nats.url)? {
            return Ok(url);
        }
        let found = match Bus::connect(&nats, "forebay cli", Patience::None).await {
            Ok(bus) => bus.gateways().find(&host_name()).await.ok().flatten(),
            Err(_) => None,
        };
        let of_settings = || chosen_grpc_url(settings).unwrap_or_else(default_grpc_url);
        Ok(found.map_or_else(of_settings, |gateway| gateway.grpc))
    }

    /// URL of the Remote Execution API of the farm on `bus`: from the data folder, if it contains this farm, else of a
    /// gateway that answers on the bus, else the address that the settings name. `None`: no gateway is known.
    pub async fn gateway_url(&self, bus: &Bus, settings: &Settings) -> Result<Option<String>, Failure> {
        if let Some(url) = known_grpc_url(settings, &self.nats_url(settings)?)? {
            return Ok(Some(url));
        }
        // A gateway comes before the settings: they may describe the gateway of another machine.
        let found = bus.gateways().find(&host_name()).await?;
        Ok(found.map(|gateway| gateway.grpc).or_else(|| chosen_grpc_url(settings)))
    }

    /// Endpoints of the farm in the data folder, unless a URL was `named` by flag or `set` in the file. An explicitly
    /// chosen data folder must contain a farm.
    fn endpoints(&self, settings: &Settings, named: bool, set: bool) -> Result<Option<Endpoints>, Failure> {
        let data = self.data();
        if named || (set && data.is_none()) {
            return Ok(None);
        }
        let found = read_endpoints(&settings.data)?;
        if found.is_none() && data.is_some() && !set {
            let line = format!("{}: start one with `forebay up`, or set --data", no_farm_in(&settings.data));
            return Err(Failure::plain(UNREACHABLE, line));
        }
        Ok(found)
    }
}

/// The server with the credentials of the settings, if these have a key.
fn with_own(server: Server, settings: &Settings) -> Server {
    let own = settings.operator_credentials();
    if own.seed.is_some() { Server { credentials: own, ..server } } else { server }
}

fn no_farm_in(folder: &Path) -> String {
    format!("no farm is running in {} (endpoints.json not found)", folder.display())
}

/// URL of the Remote Execution API in the data folder, if it contains the farm on this NATS.
fn known_grpc_url(settings: &Settings, nats: &str) -> Result<Option<String>, Failure> {
    let found = read_endpoints(&settings.data)?.filter(|endpoints| endpoints.nats == nats);
    Ok(found.and_then(|endpoints| endpoints.grpc))
}

/// URL of the address that the setting `grpc_listen` names. `None` for its default, and for port 0 (any free port).
fn chosen_grpc_url(settings: &Settings) -> Option<String> {
    let address = &settings.grpc_listen;
    let chosen = *address != Settings::default().grpc_listen && !address.ends_with(":0");
    let scheme = if settings.tls_certificate_file.is_some() { "grpcs" } else { "grpc" };
    chosen.then(|| format!("{scheme}://{address}"))
}

fn default_grpc_url() -> String {
    format!("grpc://{}", Settings::default().grpc_listen)
}

/// Reads an environment variable; an empty one counts as unset.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Reads the endpoints of the farm that runs in this data folder, if one does.
pub fn read_endpoints(folder: &Path) -> Result<Option<Endpoints>, Failure> {
    let path = folder.join("endpoints.json");
    let unreadable = |cause: &dyn std::error::Error| {
        Failure::new(UNREACHABLE, format!("cannot read {}", path.display()), cause)
    };
    match std::fs::read(&path) {
        Ok(content) => serde_json::from_slice(&content).map(Some).map_err(|error| unreadable(&error)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unreadable(&error)),
    }
}
