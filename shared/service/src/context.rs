//! Context of a service.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use audit::Audit;
use bus::{Bus, Patience, Seals};
use callers::{BuildTokens, CallerSettings, Callers, Sessions};
use cas::{Cas, CasConfig};
use credentials::BusUser;
use index::Index;
use invariant::Present as _;
use jetstream::Topology;
use listener::{Limiter, Patience as ClientPatience, Tls, TlsFiles};
use model::FarmRecord;
use policy::Claim;
use policy::{connections::ConnectionLimits, zones::Zones};
use settings::{ConnectionSettings, ServiceSettings, StoreSettings};
use tokio_util::sync::CancellationToken;

use crate::{StartError, clock, identity::remedy_for, join_store, metrics_server, traces};

/// Future of a running service. Boxed, so that its code is compiled with its own crate and not again with every
/// program that starts it.
pub type Running = std::pin::Pin<Box<dyn Future<Output = Result<(), crate::ServiceError>> + Send>>;

/// Maximum time to wait for the farm's identity, which nats-server may not answer about while it restarts.
const START_PATIENCE: Duration = Duration::from_secs(30);
/// How long to wait for the farm's time. A service cannot work without it and is restarted.
const CLOCK_PATIENCE: Duration = Duration::from_secs(5);
/// Pause before the topology is checked again.
const TOPOLOGY_PAUSE: Duration = Duration::from_millis(200);
/// Maximum number of checks that fail.
const FAILURES_MAX: u32 = 50;

/// Context of a service: the settings that every service reads, bus and stop signal. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Context {
    pub settings: Arc<ServiceSettings>,
    pub bus: Bus,
    /// Cancelled when the service must drain and end.
    pub stop: CancellationToken,
    /// Whether to wait for servers that are not available yet.
    pub patience: Patience,
    /// Name of the service.
    pub name: &'static str,
    /// Unique name of the process: of its user and a random part if it has a key, else of the service.
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
    /// Connects to the bus and checks the topology.
    ///
    /// # Errors
    ///
    /// Fails if the credentials cannot be used, and without patience if the bus or a stream is missing.
    pub async fn connect(
        settings: ServiceSettings,
        name: &'static str,
        patience: Patience,
        stop: CancellationToken,
    ) -> Result<Self, StartError> {
        let user = settings.nats.credentials.user().map_err(bus::BusError::from)?;
        if let Some(user) = user.clone().filter(|user| user.role() != name) {
            return Err(StartError::OtherSeed { user, service: name });
        }
        let instance = new_instance(name, user.as_ref());
        let limiter = limiter(&settings.connections)?;
        let seals = settings.access.seal_key.as_deref().map(Seals::of_file).transpose()?;
        let bus = Bus::connect(&settings.nats, &format!("forebay {name} {instance}"), patience).await?;
        let bus = bus.with_seals(seals);
        // Boxed: its state is large, and all services contain it.
        Box::pin(await_topology(&bus, &Topology::new(&settings.topology), patience)).await?;
        // Measured again: the bucket whose messages date the expiry of leases exists now.
        bus.measure_clock(CLOCK_PATIENCE).await?;
        tokio::spawn(clock::watch_skew(bus.clone(), stop.clone()));
        tokio::spawn(traces::follow_kept_traces(bus.clone()));
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

    /// Another unique name of this process, for an executor that begins again.
    ///
    /// # Errors
    ///
    /// Fails if the name of the seed is not that of a user.
    pub fn another_instance(&self) -> Result<String, StartError> {
        let user = self.settings.nats.credentials.user().map_err(bus::BusError::from)?;
        Ok(new_instance(self.name, user.as_ref()))
    }

    /// The certificate of the servers of this process, if they have TLS.
    ///
    /// # Errors
    ///
    /// Fails if its files cannot be used.
    pub fn tls(&self) -> Result<Option<Tls>, StartError> {
        let access = &self.settings.access;
        let files = access.tls.as_ref().map(|tls| TlsFiles {
            certificate: tls.certificate.clone(),
            key: tls.key.clone(),
            client_authorities: tls.client_authorities.clone(),
            // With access rules, a certificate is one of several credentials.
            is_client_required: access.file.is_none(),
        });
        Ok(files.map(Tls::of_files).transpose()?)
    }

    /// Whether clients may have certificates.
    fn client_certificates(&self) -> bool {
        self.settings.access.tls.as_ref().is_some_and(|tls| tls.client_authorities.is_some())
    }

    /// Signs and verifies the tokens of builds, if the settings name a key.
    ///
    /// # Errors
    ///
    /// Fails if the key cannot be used.
    pub fn build_tokens(&self) -> Result<Option<BuildTokens>, StartError> {
        Ok(self.settings.access.build_token_key.as_deref().map(BuildTokens::of_file).transpose()?)
    }

    /// Who may call the servers of this process; what they do is recorded for operators.
    ///
    /// # Errors
    ///
    /// Fails if the access rules cannot be used.
    pub fn callers(&self) -> Result<Callers, StartError> {
        let callers = match &self.settings.access.file {
            None => Callers::anyone(),
            Some(file) => {
                let sessions =
                    self.settings.access.session_key.as_deref().map(Sessions::of_file).transpose()?;
                let (builds, zones) = (self.build_tokens()?, self.zones()?);
                let clock = Some(self.bus.clock().clone());
                Callers::of_file(file, CallerSettings { builds, sessions, zones, clock })?
            }
        };
        Ok(callers.with_audit(Audit::start(&self.bus, &self.instance)))
    }

    /// The trust zones of the farm.
    ///
    /// # Errors
    ///
    /// Fails if the setting describes none.
    pub fn zones(&self) -> Result<Zones, StartError> {
        Ok(self.settings.store.zones.parse()?)
    }

    /// The store as container images see it.
    ///
    /// # Errors
    ///
    /// Fails if the setting of the trust zones describes none.
    pub fn store_of_images(&self, cas: &Cas) -> Result<Cas, StartError> {
        let sight = self.zones()?.sight_of_images();
        Ok(sight.map_or_else(|| cas.clone(), |sight| cas.seen_by(&sight)))
    }

    pub async fn index(&self) -> Result<Index, StartError> {
        Ok(Index::connect(&self.settings.redis, self.patience == Patience::Wait).await?)
    }

    /// Opens the store of blobs and action results. Fails if it does not belong to the farm.
    pub async fn cas(&self) -> Result<Cas, StartError> {
        self.open_cas(self.cas_config().await?).await
    }

    /// The same for a service that uses few blobs.
    pub async fn cas_with_small_caches(&self) -> Result<Cas, StartError> {
        self.open_cas(self.cas_config().await?.with_small_caches()).await
    }

    /// The store of the settings, else that of the data folder, else the farm's as recorded on the bus.
    async fn cas_config(&self) -> Result<CasConfig, StartError> {
        let config = cas_config(&self.settings.store)?;
        if !self.settings.store.url.is_empty() || config.root.join(cas::STORE_ID).exists() {
            return Ok(config);
        }
        let (_, record) = self.bus.buckets().get_patiently::<FarmRecord>(&(), START_PATIENCE).await?;
        let Some(known) = record.and_then(|record| record.cas) else { return Ok(config) };
        let Some(folder) = known.url.strip_prefix("file://").map(PathBuf::from) else {
            return Ok(CasConfig { backing: Some(known.url), ..config });
        };
        if folder.join(cas::STORE_ID).exists() {
            return Ok(CasConfig { root: folder, ..config });
        }
        let remedy = remedy_for(&self.bus).await;
        Err(StartError::NoStore { url: known.url, remedy })
    }

    async fn open_cas(&self, config: CasConfig) -> Result<Cas, StartError> {
        let cas = Cas::open(config)?;
        tokio::select! {
            joined = join_store(&self.bus, &cas, Claim::Join, self.patience) => joined?,
            // Stopped while waiting for the store: the service ends as soon as it has started.
            () = self.stop.cancelled() => {}
        }
        Ok(cas)
    }

    /// Absolute path of a folder under the data folder, which is created if it is missing.
    pub fn data_folder(&self, name: &str) -> Result<PathBuf, StartError> {
        data_folder(&self.settings.store.data, name)
    }

    /// Serves `/metrics` and reports that the service is ready.
    pub async fn ready(&self, mut ready: Ready) -> Result<(), StartError> {
        let (address, needs_certificate) = (&self.settings.metrics_listen, self.client_certificates());
        let metrics =
            metrics_server::serve(address, self.tls()?, needs_certificate, self.limiter.clone()).await?;
        ready.metrics = Some(metrics.clone());
        // A server processes a connection in order: once it answers, it knows our subscriptions.
        if let Err(error) = self.bus.settle().await {
            tracing::debug!(%error, "cannot confirm that the server knows the subscriptions");
        }
        telemetry::set_ready(true);
        tracing::info!(service = self.name, instance = &*self.instance, metrics, "ready");
        if let Some(path) = std::env::var_os("FOREBAY_LISTEN_FILE") {
            write_ready(Path::new(&path), &ready)?;
        }
        Ok(())
    }
}

/// A name that no other process has. A user of the bus may use the subjects of those that begin with its own name.
fn new_instance(service: &str, user: Option<&BusUser>) -> String {
    let random = uuid::Uuid::new_v4().simple().to_string();
    let random = random.get(..12).present("the first 12 digits of a UUID");
    match user {
        Some(user) => format!("{}.{random}", user.instance()),
        None => format!("{service}-{random}"),
    }
}

/// Waits until all streams and consumers exist.
async fn await_topology(bus: &Bus, topology: &Topology, patience: Patience) -> Result<(), StartError> {
    let (mut failures, mut waits) = (0, 0);
    loop {
        match jetstream::check(bus, topology).await {
            Ok(differences) => match differences.iter().find(|difference| difference.is_missing()) {
                None => {
                    jetstream::report(&differences);
                    return Ok(());
                }
                Some(missing) if patience == Patience::None => {
                    return Err(StartError::NoTopology { missing: Box::new(missing.clone()) });
                }
                Some(missing) => {
                    if waits == 0 {
                        tracing::warn!(%missing, "waiting: `forebay topology --apply` creates what is missing");
                    }
                    waits += 1;
                }
            },
            // A server that has just started answers before JetStream does.
            Err(error) => {
                failures += 1;
                if patience == Patience::None || failures > FAILURES_MAX {
                    return Err(error.into());
                }
                tracing::warn!(error = telemetry::error_chain(&error), "waiting for JetStream");
            }
        }
        tokio::time::sleep(TOPOLOGY_PAUSE).await;
    }
}

fn data_folder(data: &Path, name: &str) -> Result<PathBuf, StartError> {
    let folder = data.join(name);
    let made = std::fs::create_dir_all(&folder).and_then(|()| folder.canonicalize());
    made.map_err(|source| StartError::Write { path: folder.display().to_string(), source })
}

/// Opens the store of the settings without checking that it belongs to the farm. See [`join_store`].
pub fn open_cas(settings: &StoreSettings) -> Result<Cas, StartError> {
    Ok(Cas::open(cas_config(settings)?)?)
}

fn cas_config(settings: &StoreSettings) -> Result<CasConfig, StartError> {
    // A folder needs no copies in the data folder.
    let (root, backing) = match (settings.url.as_str(), settings.url.strip_prefix("file://")) {
        ("", _) => (data_folder(&settings.data, "cas")?, None),
        (_, Some(folder)) => (PathBuf::from(folder), None),
        (url, None) => (data_folder(&settings.data, "cas")?, Some(url.to_owned())),
    };
    settings.zones.parse::<Zones>()?.check_limits(&settings.zone_limits)?;
    Ok(CasConfig {
        backing,
        memory_bytes: settings.memory_bytes,
        blob_bytes_max: settings.blob_bytes_max,
        keep: settings.keep,
        keep_min: settings.keep_min,
        retention: settings.retention,
        fsync: settings.fsync,
        zone_limits: settings.zone_limits.clone(),
        ..CasConfig::new(root)
    })
}

/// Limits from the settings and the limit of open files.
fn limiter(settings: &ConnectionSettings) -> Result<Limiter, StartError> {
    let descriptors = listener::descriptors().map_err(StartError::Descriptors)?;
    let limits = ConnectionLimits::new(settings.max, settings.per_client_max, descriptors.soft)?;
    let patience = ClientPatience {
        head: settings.request_head_timeout,
        body: settings.request_body_timeout,
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
