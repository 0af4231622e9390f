//! Eviction from the store of a data folder, by one process at a time.

use cas::{Cas, CasError, CasRoom, Evictor, EvictorConfig, Pass};
use disk::{Reserve, Space};
use service::{Context, ServiceError, StartError};
use telemetry::metrics::{Counter, Gauge, Label, Readings, count};

use crate::usage::{StoreUsage, govern};

/// For a service that may be the only process on its store's folder: reports its writes and learns whether the store
/// is full. If the store has a backing, this process also evicts, or waits while another process does.
pub async fn keep_bounds(context: &Context, cas: &Cas) -> Result<(), ServiceError> {
    StoreUsage::join(cas, &context.bus, context.stop.clone()).await?;
    if cas.config().backing.is_some() {
        let (context, cas) = (context.clone(), cas.clone());
        tokio::spawn(async move {
            if let Err(error) = evict(context, cas).await {
                tracing::error!(
                    error = telemetry::error_chain(&error),
                    "eviction failed; the store may grow beyond its bounds"
                );
            }
        });
    }
    Ok(())
}

/// Evicts from the store, and reports when it is full, until the context is stopped. Waits while another process
/// evicts from its folder.
async fn evict(context: Context, cas: Cas) -> Result<(), ServiceError> {
    match take_over(&context, &cas).await? {
        Some(evictor) => run(&context, &cas, &evictor).await,
        None => Ok(()),
    }
}

/// Becomes the process that evicts from the store's folder. Waits while another process does, or until the context is
/// stopped: then there is no evictor.
pub async fn take_over(context: &Context, cas: &Cas) -> Result<Option<Evictor>, ServiceError> {
    let root = &cas.config().root;
    let failed = |source| StartError::Write { path: root.display().to_string(), source };
    let bytes = Space::of(root).map_err(failed)?.bytes;
    let settings = &context.settings.store;
    let free_bytes_min = Reserve::new(settings.disk_left_percent).for_stores(bytes);
    let bounds = EvictorConfig { bytes_max: settings.bytes_max, free_bytes_min };
    tokio::select! {
        evictor = open(cas, bounds) => Ok(Some(evictor?)),
        () = context.stop.cancelled() => Ok(None),
    }
}

/// Evicts, and reports when the store is full, until the context is stopped.
pub async fn run(context: &Context, cas: &Cas, evictor: &Evictor) -> Result<(), ServiceError> {
    report_usage(evictor);
    let governed = govern(evictor, &cas.config().root, &context.bus, &context.stop);
    let evicted = |pass: Pass| count(Counter::CasEvictedBytes, &[], pass.freed);
    let (governed, ()) = tokio::join!(governed, evictor.run(context.stop.cancelled(), evicted));
    governed
}

/// Shows how full the store is in the metrics of this process.
fn report_usage(evictor: &Evictor) {
    let (usage, zones) = (evictor.usage(), evictor.zones());
    telemetry::on_scrape(move || {
        let CasRoom { used, max, refusal: _ } = usage();
        let mut readings = Readings::default();
        readings.add(Gauge::CasUsedBytes, &[], used);
        readings.add(Gauge::CasBytesMax, &[], max);
        for room in zones() {
            let labels = [(Label::Zone, room.zone.as_str())];
            readings.add(Gauge::CasZoneBlobs, &labels, room.used.blobs);
            readings.add(Gauge::CasZoneBytes, &labels, room.used.bytes);
            readings.add(Gauge::CasZoneFull, &labels, u8::from(room.is_refused));
            readings.add(Gauge::CasZoneUsedPercent, &labels, room.limit.percent(room.used));
        }
        std::future::ready(Some(readings))
    });
}

/// Takes over eviction from the folder; waits while another process evicts.
async fn open(cas: &Cas, room: EvictorConfig) -> Result<Evictor, StartError> {
    loop {
        match Evictor::open(cas, room) {
            Ok(evictor) => return Ok(evictor),
            Err(CasError::EvictorRuns { path }) => {
                tracing::info!(path, "another process evicts from this folder; waiting for it to end");
                let path = cas.config().root.join("evictor.lock");
                let failed = |source| StartError::Write { path: path.display().to_string(), source };
                disk::wait_for_lock(&path).await.map_err(failed)?;
            }
            Err(error) => return Err(error.into()),
        }
    }
}
