//! Context of a service.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use bus::{Bus, Patience};
use cas::{Cas, CasConfig};
use index::Index;
use invariant::Present as _;
use jetstream::Topology;
use listener::{ClientListener, Limiter, Patience as ClientPatience, Protocol};
use policy::Claim;
use policy::connections::ConnectionLimits;
use settings::Settings;
use store::Store;
use tokio_util::sync::CancellationToken;

use crate::{StartError, clock, join_cas, join_store};

/// Future of a running service. Boxed, so that its code is compiled with its own crate and not again with every
/// program that starts it.
pub type Running = std::pin::Pin<Box<dyn Future<Output = Result<(), crate::ServiceError>> + Send>>;

/// How long to wait for the farm's time. A service cannot work without it and is restarted.
const CLOCK_PATIENCE: std::time::Duration = std::time::Duration::from_secs(5);

/// Context of a service: settings, bus and stop signal. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Context {
    pub settings: Arc<Settings>,
    pub bus: Bus,
    /// Cancelled when the service must drain and end.
    pub stop: CancellationToken,
    /// Whether to wait for servers that are not available yet.
    pub patience: Patience,
    /// Name of the service.
    pub name: &'static str,
    /// Unique name of the process.
    pub instance: Arc<str>,
    /// Counts client connections on all addresses on which the service listens.
    pub limiter: Limiter,
}

/// Addresses of a ready service; written to `FOREBAY_LISTEN_FILE` for the process that started it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ready {
    /// Address of the HTTP API: `http://HOST:PORT`.
    pub http: Option<String>,
    /// Address of the Remote Execution API: `grpc://HOST:PORT`.
    pub grpc: Option<String>,
    /// Address of the metrics: `http://HOST:PORT/metrics`.
    pub metrics: Option<String>,
}

impl Context {
    /// Connects to the bus and applies the topology.
    pub async fn connect(
        settings: Settings,
        name: &'static str,
        patience: Patience,
        stop: CancellationToken,
    ) -> Result<Self, StartError> {
        let id = uuid::Uuid::new_v4().simple().to_string();
        let instance = format!("{name}-{}", id.get(..12).present("the first 12 digits of a UUID"));
        let limiter = limiter(&settings)?;
        let bus = Bus::connect(&settings.nats_url, &format!("forebay {instance}"), patience).await?;
        let topology = Topology::new(&settings);
        let mut tries = 0;
        // A server that has just started answers before JetStream does.
        while let Err(error) = jetstream::ensure(&bus, &topology).await {
            tries += 1;
            if patience == Patience::None || tries > 50 {
                return Err(error.into());
            }
            tracing::warn!(error = telemetry::error_chain(&error), "waiting for JetStream");
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        }
        // Measured again: the bucket whose messages date the expiry of leases exists now.
        bus.measure_clock(CLOCK_PATIENCE).await?;
        tokio::spawn(clock::watch_skew(bus.clone(), stop.clone()));
        Ok(Self {
            settings: Arc::new(settings),
            bus,
            stop,
            patience,
            name,
            instance: instance.into(),
            limiter,
        })
    }

    pub async fn index(&self) -> Result<Index, StartError> {
        Ok(Index::connect(&self.settings.redis_url, self.patience == Patience::Wait).await?)
    }

    /// Opens the blob store: from the settings, else from the bus, else in the data folder. Fails if it does not
    /// belong to the farm.
    pub async fn store(&self) -> Result<Store, StartError> {
        let url = if self.settings.store_url.is_empty() {
            match self.bus.store_url().await? {
                Some(url) if !Store::is_there(&url) => return Err(StartError::NoStore { url }),
                Some(url) => url,
                None => Store::url_of(&self.data_folder("objects")?),
            }
        } else {
            self.settings.store_url.clone()
        };
        let store = Store::open(&url)?.leaving(self.settings.disk_left_percent);
        join_store(&self.bus, &store, Claim::Join).await?;
        Ok(store)
    }

    /// Opens the content-addressable store and the action cache in the data folder. Fails if they do not
    /// belong to the farm.
    pub async fn cas(&self) -> Result<Cas, StartError> {
        let cas = open_cas(&self.settings)?;
        join_cas(&self.bus, &cas, Claim::Join).await?;
        Ok(cas)
    }

    /// Absolute path of a folder under the data folder, which is created if it is missing.
    pub fn data_folder(&self, name: &str) -> Result<PathBuf, StartError> {
        data_folder(&self.settings, name)
    }

    /// Serves `/metrics` and reports that the service is ready.
    pub async fn ready(&self, mut ready: Ready) -> Result<(), StartError> {
        let address = &self.settings.metrics_listen;
        let listen = |source| StartError::Listen { address: address.clone(), source };
        let parsed: SocketAddr = address
            .parse()
            .map_err(|error| listen(std::io::Error::new(std::io::ErrorKind::InvalidInput, error)))?;
        let listener = tokio::net::TcpListener::bind(parsed).await.map_err(listen)?;
        let bound = listener.local_addr().map_err(listen)?;
        let listener = ClientListener::new(listener, Protocol::Http1, self.limiter.clone());
        // Served until the process ends, even while it drains.
        tokio::spawn(listener::serve_http(listener, telemetry::metrics_routes(), CancellationToken::new()));
        ready.metrics = Some(format!("http://{bound}/metrics"));
        // A server processes a connection in order: once it answers, it knows our subscriptions.
        if let Err(error) = self.bus.jetstream().query_account().await {
            tracing::debug!(%error, "cannot confirm that the server knows the subscriptions");
        }
        telemetry::set_ready(true);
        tracing::info!(service = self.name, instance = &*self.instance, %bound, "ready");
        if let Some(path) = std::env::var_os("FOREBAY_LISTEN_FILE") {
            write_ready(Path::new(&path), &ready)?;
        }
        Ok(())
    }
}

fn data_folder(settings: &Settings, name: &str) -> Result<PathBuf, StartError> {
    let folder = settings.data.join(name);
    let made = std::fs::create_dir_all(&folder).and_then(|()| folder.canonicalize());
    made.map_err(|source| StartError::Write { path: folder.display().to_string(), source })
}

/// Opens the content-addressable store of the settings without checking that it belongs to the farm. See [`join_cas`].
pub fn open_cas(settings: &Settings) -> Result<Cas, StartError> {
    let url = Some(settings.cas_url.clone()).filter(|url| !url.is_empty());
    Ok(Cas::open(CasConfig {
        backing: url,
        memory_bytes: settings.cas_memory_bytes,
        blob_bytes_max: settings.cas_blob_bytes_max,
        keep: std::time::Duration::from_secs(settings.cas_keep_seconds),
        keep_min: std::time::Duration::from_secs(settings.cas_keep_min_seconds),
        fsync: settings.cas_fsync,
        ..CasConfig::new(data_folder(settings, "cas")?)
    })?)
}

/// Limits from the settings and the limit of open files.
fn limiter(settings: &Settings) -> Result<Limiter, StartError> {
    let descriptors = listener::descriptors().map_err(StartError::Descriptors)?;
    let (total, per_client) = (settings.connections_max, settings.connections_per_client_max);
    let limits = ConnectionLimits::new(total, per_client, descriptors.soft)?;
    let patience = ClientPatience {
        head: std::time::Duration::from_secs(settings.request_head_timeout_seconds),
        body: std::time::Duration::from_secs(settings.request_body_timeout_seconds),
        ..ClientPatience::default()
    };
    Ok(Limiter::new(limits, patience))
}

fn write_ready(path: &Path, ready: &Ready) -> Result<(), StartError> {
    let failed = |source| StartError::Write { path: path.display().to_string(), source };
    let content = serde_json::json!({ "http": ready.http, "grpc": ready.grpc, "metrics": ready.metrics, "pid": std::process::id() });
    let partial = path.with_extension("partial");
    std::fs::write(&partial, content.to_string()).map_err(failed)?;
    std::fs::rename(&partial, path).map_err(failed)
}
