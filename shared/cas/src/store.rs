//! The store: its parts, what it has, and its counters.

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use model::{BlobDigest, Sight, Zone};

use crate::{
    CasConfig, CasError, CasStats, Refusal, UsageSink,
    action_cache::ActionCache,
    backing::{Backing, farm::Farm, objects::Objects},
    blocking::BlockingCalls,
    buffers::BufferSpace,
    empty_blob::is_empty,
    local::{Local, Tier},
    stats::Counter,
    trees::Trees,
    zone::{View, Views},
};

/// Number of digests looked up in one blocking task.
const LOOK_UPS: usize = 2048;

/// The content-addressable store and the action cache. Cheap to clone; all clones are one.
///
/// Guarantees: a blob that a call reports as present (`missing`, `contains`, `get_action`, `check_tree`, `split`) or
/// that was just stored is kept for at least [`CasConfig::keep`] from then on while there is space, and for
/// [`CasConfig::keep_min`] in any case. The modification time of its file is the last time a caller relied on it; the
/// [`Evictor`](crate::Evictor) does not touch files younger than 1.25 times that. Several processes may use one
/// folder with the same `keep`.
///
/// With an object store behind it (`backing`), a write counts as stored once the object store has it; reads fall back
/// to the object store and fill the local tier. [`Cas::sweep_objects`] deletes objects that were neither written nor
/// renewed within `retention`; a look-up renews older ones in time. A life-cycle rule of the bucket must be longer.
///
/// With a farm behind it (`grpc://`), the farm is authoritative: it answers which blobs are missing, receives each
/// write before the write counts as stored, and keeps the action results. Its `keep` must not be shorter than this
/// store's. The local tier holds copies.
///
/// All content is verified before it is stored. Whole reads ([`Cas::get`]) are verified when they come from
/// the disk, streams only by their length (their reader has the digest and the bytes); content from the
/// object store is verified when it fills the local tier. A file of the wrong length, such as a power cut
/// leaves, is removed at its next use.
///
/// A handle of [`Cas::seen_by`] sees the blobs and results of one zone. Handles of other crates are of the whole store
/// unless they say otherwise.
#[derive(Clone)]
pub struct Cas {
    parts: Arc<Parts>,
    /// What this handle sees; none: everything.
    view: Option<Arc<View>>,
}

struct Parts {
    config: CasConfig,
    local: Arc<Local>,
    backing: Option<Backing>,
    backing_reads: Counter,
    trees: Trees,
    actions: ActionCache,
    buffers: BufferSpace,
    blocking: BlockingCalls,
    views: Views,
}

impl std::fmt::Debug for Cas {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cas").field("root", &self.parts.config.root).finish_non_exhaustive()
    }
}

impl Cas {
    /// Opens the store in its folder and creates missing subfolders.
    pub fn open(config: CasConfig) -> Result<Self, CasError> {
        let backing = config.backing.as_deref().map(|url| Backing::open(url, &config)).transpose()?;
        if let (Some(Backing::Objects(_)), false) = (&backing, config.zone_limits.is_empty()) {
            let why =
                "zone_limits need a store in a folder; limit an object store by rules of its bucket".into();
            return Err(CasError::Unsupported { url: config.backing.unwrap_or_default(), why });
        }
        let tier = match &backing {
            Some(Backing::Objects(_)) => Tier::Copies { proof_age_max: Some(config.retention / 2) },
            Some(Backing::Remote(_)) => Tier::Copies { proof_age_max: None },
            None => Tier::Only,
        };
        let parts = Parts {
            local: Arc::new(Local::open(&config, tier)?),
            backing,
            backing_reads: Counter::default(),
            trees: Trees::new(config.memo_bytes),
            actions: ActionCache::new(config.memo_bytes),
            buffers: BufferSpace::new(config.in_flight_bytes),
            blocking: BlockingCalls::new(),
            views: Views::default(),
            config,
        };
        Ok(Self { parts: Arc::new(parts), view: None })
    }

    /// The same store, as this sight has it: results of its zone and its parent, and, if it is bounded, only blobs that
    /// these have proved to have. What the handle stores is proved by its zone.
    #[must_use]
    pub fn seen_by(&self, sight: &Sight) -> Self {
        let parts = Arc::clone(&self.parts);
        let view = self.parts.views.get(sight, || View::new(sight, &parts.config, parts.backing.as_ref()));
        Self { parts, view: Some(view) }
    }

    pub(crate) fn view(&self) -> Option<&View> {
        self.view.as_deref()
    }

    pub fn config(&self) -> &CasConfig {
        &self.parts.config
    }

    pub(crate) fn local(&self) -> &Arc<Local> {
        &self.parts.local
    }

    pub(crate) fn trees(&self) -> &Trees {
        // What one zone has must not be known to another from its trees.
        self.view().and_then(View::trees).unwrap_or(&self.parts.trees)
    }

    pub(crate) fn actions(&self) -> &ActionCache {
        &self.parts.actions
    }

    pub(crate) fn buffers(&self) -> &BufferSpace {
        &self.parts.buffers
    }

    pub(crate) fn backing(&self) -> Option<&Backing> {
        self.view().and_then(View::backing).or(self.parts.backing.as_ref())
    }

    /// The object store, if the backing is one.
    pub(crate) fn objects(&self) -> Option<&Objects> {
        match self.backing() {
            Some(Backing::Objects(objects)) => Some(objects),
            Some(Backing::Remote(_)) | None => None,
        }
    }

    /// The farm, if the backing is one.
    pub(crate) fn farm(&self) -> Option<&Farm> {
        match self.backing() {
            Some(Backing::Remote(farm)) => Some(farm),
            Some(Backing::Objects(_)) | None => None,
        }
    }

    /// Counts blobs that were read from the backing.
    pub(crate) fn count_backing_reads(&self, blobs: u64) {
        self.parts.backing_reads.add(blobs);
    }

    /// Counters since the store was opened.
    pub fn stats(&self) -> CasStats {
        let (action_hits, action_misses, action_incomplete) = self.actions().counts();
        let backing_reads = self.parts.backing_reads.get();
        CasStats { action_hits, action_misses, action_incomplete, backing_reads, ..self.local().stats() }
    }

    /// Sets the receiver of disk usage reports and replaces the previous one.
    pub fn set_usage_sink(&self, sink: Arc<dyn UsageSink>) {
        self.local().set_usage_sink(sink);
    }

    /// Sets whether writes of new blobs are refused with [`CasError::Full`].
    pub fn set_full(&self, full: bool) {
        self.set_refusal(if full { Refusal::All } else { Refusal::Nothing });
    }

    /// Sets which writes of new blobs are refused.
    pub fn set_refusal(&self, refusal: Refusal) {
        self.local().refusal().set(refusal);
    }

    /// Sets the zones whose new blobs are refused with [`CasError::ZoneFull`].
    pub fn set_refused_zones(&self, zones: BTreeSet<Zone>) {
        self.local().refusal().set_zones(zones);
    }

    /// Whether any writes of new blobs are refused.
    pub fn is_full(&self) -> bool {
        self.local().is_full()
    }

    /// Returns the missing ones of `digests`, each once, in the order of the request. The others
    /// are kept for another [`CasConfig::keep`].
    pub async fn missing(&self, digests: &[BlobDigest]) -> Result<Vec<BlobDigest>, CasError> {
        let hidden = self.hidden(digests).await?;
        if hidden.is_empty() {
            return self.not_stored(digests).await;
        }
        // What the zone does not have must not be kept for it.
        let seen: Vec<BlobDigest> = digests.iter().filter(|it| !hidden.contains(it)).copied().collect();
        let mut absent: HashSet<BlobDigest> = self.not_stored(&seen).await?.into_iter().collect();
        absent.extend(hidden);
        Ok(digests.iter().filter(|digest| absent.remove(digest)).copied().collect())
    }

    /// The same, whichever zone has them.
    async fn not_stored(&self, digests: &[BlobDigest]) -> Result<Vec<BlobDigest>, CasError> {
        if let Some(farm) = self.farm() {
            return farm.missing(digests).await;
        }
        let local = self.local();
        let now = local.now();
        let mut cold: Vec<BlobDigest> = digests
            .iter()
            .filter(|digest| !is_empty(digest) && !local.is_known(digest, now))
            .copied()
            .collect();
        if cold.is_empty() {
            return Ok(cold);
        }
        let mut mentioned = HashSet::with_capacity(cold.len());
        cold.retain(|digest| mentioned.insert(*digest));
        drop(mentioned);
        let parts: Vec<Vec<BlobDigest>> = cold.chunks(LOOK_UPS).map(<[BlobDigest]>::to_vec).collect();
        let absent: Vec<Vec<BlobDigest>> = stream::iter(parts)
            .map(|part| self.run_blocking(move |local| local.touch_blobs(&part)))
            .buffered(4)
            .try_collect()
            .await?;
        let absent = absent.concat();
        let Some(objects) = self.objects() else { return Ok(absent) };
        let at = local.now();
        let (there, absent) = objects.look_up_many(absent).await?;
        local.note_elsewhere(&there, at);
        Ok(absent)
    }

    /// Whether the store has a blob; if so, it is kept for another [`CasConfig::keep`].
    pub async fn contains(&self, digest: &BlobDigest) -> Result<bool, CasError> {
        Ok(self.missing(std::slice::from_ref(digest)).await?.is_empty())
    }

    /// Forgets that a blob was there. For callers that find its file gone, which happens only when files of the store
    /// are deleted by hand.
    pub fn forget(&self, digest: &BlobDigest) {
        self.local().forget(digest);
    }

    /// Runs `work` on a blocking thread.
    pub(crate) async fn run_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Local) -> Result<T, CasError> + Send + 'static,
    ) -> Result<T, CasError> {
        let outcome = self.parts.blocking.run(&self.parts.local, work).await;
        self.local().noted(outcome)
    }
}
