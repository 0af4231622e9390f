//! Options that every command has.

use std::path::{Path, PathBuf};

use bus::{Bus, Patience};
use clap::Args;
use model::Endpoints;
use service::host_name;
use settings::Settings;

use crate::{
    failure::{Failure, UNREACHABLE},
    wait::WaitLimit,
};

const NATS_HELP: &str = "Where nats-server listens [env: FOREBAY_NATS_URL] [default: as `forebay up` wrote it into the data \
    folder, else nats://127.0.0.1:4222]";
const REDIS_HELP: &str = "Where Redis listens [env: FOREBAY_REDIS_URL] [default: as `forebay up` wrote it into the data \
    folder, else redis://127.0.0.1:6379]";
const DATA_HELP: &str = "The data folder [env: FOREBAY_DATA] [default: ./forebay-data]";
const WAIT_HELP: &str = "How long to wait for a server or service that does not answer, as 30s or 5m; 0: not at all; forever. \
    After it, the exit code is 4. Services and `up` wait without an end unless it is 0. [env: FOREBAY_WAIT] [default: 30s]";

/// Options that every command has.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Options of every command")]
pub(crate) struct Globals {
    // Not `env` of clap: what is set there would look required in its usage lines.
    #[arg(long, help = NATS_HELP, value_name = "URL", global = true)]
    nats: Option<String>,
    #[arg(long, help = REDIS_HELP, value_name = "URL", global = true)]
    redis: Option<String>,
    #[arg(long, help = DATA_HELP, value_name = "DIR", global = true)]
    data: Option<PathBuf>,
    /// The settings file [default: ./forebay.toml where there is one]
    #[arg(long, value_name = "FILE", global = true)]
    config: Option<PathBuf>,
    #[arg(long, help = WAIT_HELP, value_name = "TIME", global = true)]
    wait: Option<WaitLimit>,
    /// Fail at once with exit code 4 where a server or service is not there: --wait 0
    #[arg(long, global = true, conflicts_with = "wait")]
    no_wait: bool,
    /// Print JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

impl Globals {
    /// How long to wait for servers and services.
    pub(crate) fn wait(&self) -> Result<WaitLimit, Failure> {
        Ok(self.chosen_wait()?.unwrap_or_default())
    }

    /// How long to wait, where that was said.
    pub(crate) fn chosen_wait(&self) -> Result<Option<WaitLimit>, Failure> {
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

    /// What this farm is known by to its user: its data folder where that says where it is, else its URL.
    pub(crate) fn farm_name(&self, settings: &Settings) -> Result<String, Failure> {
        let url = self.nats_url(settings)?;
        let found = read_endpoints(&settings.data)?.filter(|endpoints| endpoints.nats == url);
        let folder = found.and_then(|_| settings.data.canonicalize().ok());
        Ok(folder.map_or(url, |folder| folder.display().to_string()))
    }

    fn nats(&self) -> Option<String> {
        self.nats.clone().or_else(|| variable("FOREBAY_NATS_URL"))
    }

    fn redis(&self) -> Option<String> {
        self.redis.clone().or_else(|| variable("FOREBAY_REDIS_URL"))
    }

    fn data(&self) -> Option<PathBuf> {
        self.data.clone().or_else(|| variable("FOREBAY_DATA").map(PathBuf::from))
    }

    /// Defaults, file, environment, flags.
    pub(crate) fn settings(&self) -> Result<Settings, Failure> {
        let file = self.config.clone().unwrap_or_else(|| PathBuf::from("forebay.toml"));
        let mut settings = Settings::load(&file, self.config.is_some())?;
        if let Some(url) = self.nats() {
            settings.nats_url = url;
        }
        if let Some(url) = self.redis() {
            settings.redis_url = url;
        }
        if let Some(folder) = self.data() {
            settings.data = folder;
        }
        Ok(settings)
    }

    /// Where nats-server listens, for a client. What was named goes before what was found.
    pub(crate) fn nats_url(&self, settings: &Settings) -> Result<String, Failure> {
        let named = self.nats().is_some();
        let found = self.endpoints(settings, named, settings.nats_url != Settings::default().nats_url)?;
        Ok(found.map_or_else(|| settings.nats_url.clone(), |endpoints| endpoints.nats))
    }

    /// Where Redis listens, for a client.
    pub(crate) fn redis_url(&self, settings: &Settings) -> Result<String, Failure> {
        let named = self.redis().is_some();
        let found = self.endpoints(settings, named, settings.redis_url != Settings::default().redis_url)?;
        Ok(found.map_or_else(|| settings.redis_url.clone(), |endpoints| endpoints.redis))
    }

    /// Where nats-server and Redis listen, for a service: what was named goes before what was found in the data folder, which
    /// need not hold a farm.
    pub(crate) fn servers(&self, settings: &Settings) -> Result<(String, String), Failure> {
        let defaults = Settings::default();
        let found = read_endpoints(&settings.data)?;
        let choose = |named: bool, set: &str, default: &str, found: Option<String>| {
            let is_set = named || (set != default && self.data().is_none());
            found.filter(|_| !is_set).unwrap_or_else(|| set.to_owned())
        };
        let (nats, redis) = found.map(|found| (found.nats, found.redis)).unzip();
        Ok((
            choose(self.nats().is_some(), &settings.nats_url, &defaults.nats_url, nats),
            choose(self.redis().is_some(), &settings.redis_url, &defaults.redis_url, redis),
        ))
    }

    /// Where the Remote Execution API listens, for a client: as the data folder or the settings say, else where a gateway
    /// answers on the bus, else the usual port.
    pub(crate) async fn grpc_url(&self, settings: &Settings) -> Result<String, Failure> {
        let set = settings.grpc_listen != Settings::default().grpc_listen;
        let named = self.nats().is_some() && self.data().is_none();
        if let Some(grpc) = self.endpoints(settings, named, set)?.and_then(|endpoints| endpoints.grpc) {
            return Ok(grpc);
        }
        let usual = format!("grpc://{}", settings.grpc_listen);
        if set {
            return Ok(usual);
        }
        let Ok(bus) = Bus::connect(&self.nats_url(settings)?, "forebay cli", Patience::None).await else {
            return Ok(usual);
        };
        let found = bus.find_gateway(&host_name()).await.ok().flatten();
        Ok(found.map_or(usual, |gateway| gateway.grpc))
    }

    /// The farm of the data folder, unless a URL was `named` by flag or `set` in the file. A folder that was
    /// named must hold one.
    fn endpoints(&self, settings: &Settings, named: bool, set: bool) -> Result<Option<Endpoints>, Failure> {
        let data = self.data();
        if named || (set && data.is_none()) {
            return Ok(None);
        }
        let found = read_endpoints(&settings.data)?;
        if found.is_none() && data.is_some() && !set {
            let folder = settings.data.display();
            return Err(Failure::plain(
                UNREACHABLE,
                format!("no farm runs in {folder}: it has no endpoints.json"),
            ));
        }
        Ok(found)
    }
}

/// A variable of the environment; one that is empty counts as none.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn read_endpoints(folder: &Path) -> Result<Option<Endpoints>, Failure> {
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
