//! Stores results of actions, and finds those of which everything is present.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use model::{BlobDigest, DigestFunction};
use prost::Message as _;
use reapi::execution::{ActionResult, Digest};

use super::{ActionCache, memo::Parsed};
use crate::{
    Cas, CasError, TreeCheck,
    known::Moment,
    layout::Entry,
    local::{Local, Stamp},
    trees::Rule,
};

impl Cas {
    /// Returns the stored result of an action if everything it references is present: files, trees and their contents,
    /// standard output and error. If so, all of it is kept for another [`CasConfig::keep`](crate::CasConfig::keep).
    pub async fn get_action(
        &self,
        instance: &str,
        action: &BlobDigest,
    ) -> Result<Option<Arc<ActionResult>>, CasError> {
        self.actions().get(self, instance, action).await
    }

    /// Stores the result of an action and replaces the previous one.
    pub async fn put_action(
        &self,
        instance: &str,
        action: &BlobDigest,
        result: &ActionResult,
    ) -> Result<(), CasError> {
        let wrong = |why| CasError::Malformed { digest: *action, wanted: "ActionResult", why };
        references(result, action.function).map_err(wrong)?;
        if let Some(farm) = self.farm() {
            return farm.put_action(instance, action, result).await;
        }
        let entry = Entry::action(self.zone(), instance, action);
        self.put_record(entry, &result.encode_to_vec()).await
    }

    /// Whether everything is there that a result of an action with this digest function references.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be read, or the result is malformed.
    pub async fn has_outputs_of(&self, result: &ActionResult, action: &BlobDigest) -> Result<bool, CasError> {
        let wrong = |why| CasError::Malformed { digest: *action, wanted: "ActionResult", why };
        let references = references(result, action.function).map_err(wrong)?;
        references.are_complete(self).await
    }

    /// Removes the result of an action. Returns whether there was one.
    pub async fn remove_action(&self, instance: &str, action: &BlobDigest) -> Result<bool, CasError> {
        if let Some(farm) = self.farm() {
            return Err(farm.no_removal());
        }
        self.remove_result(Entry::action(self.zone(), instance, action)).await
    }

    pub(super) async fn remove_result(&self, entry: Entry) -> Result<bool, CasError> {
        let local = self.run_blocking(move |local| local.remove(&entry)).await?;
        let stored = match self.objects() {
            Some(objects) => objects.remove(&entry).await?,
            None => false,
        };
        Ok(local || stored)
    }
}

/// State of an action's result in the local tier.
enum Found {
    Absent,
    Remembered(Arc<Parsed>),
    /// It is on the disk, and its life was just extended.
    Stored,
}

impl ActionCache {
    /// Returns the stored result of an action if everything it references is present.
    async fn get(
        &self,
        cas: &Cas,
        instance: &str,
        action: &BlobDigest,
    ) -> Result<Option<Arc<ActionResult>>, CasError> {
        if let Some(farm) = cas.farm() {
            // Only the farm knows which result is the latest, and it has checked that the result is complete.
            let found = farm.get_action(instance, action).await?;
            let counter = if found.is_some() { &self.hits } else { &self.misses };
            counter.add(1);
            return Ok(found.map(Arc::new));
        }
        let mut is_there = false;
        for zone in [Some(cas.zone()), cas.parent().map(Some)].into_iter().flatten() {
            let Some(parsed) = self.load(cas, Entry::action(zone, instance, action)).await? else { continue };
            if is_complete(cas, &parsed).await? {
                self.hits.add(1);
                return Ok(Some(Arc::clone(&parsed.result)));
            }
            is_there = true;
        }
        if is_there {
            self.incomplete.add(1);
            tracing::debug!(%action, instance, "not serving a stored result: a blob that it references is gone");
        } else {
            self.misses.add(1);
        }
        Ok(None)
    }

    async fn load(&self, cas: &Cas, entry: Entry) -> Result<Option<Arc<Parsed>>, CasError> {
        // This look-up takes less time than a handover to a blocking thread.
        let loaded = match self.find(cas.local(), &entry)? {
            Found::Absent => None,
            Found::Remembered(parsed) => Some(parsed),
            Found::Stored => self.read(cas, entry).await?,
        };
        if loaded.is_some() || !cas.fetch_record(&entry).await? {
            return Ok(loaded);
        }
        self.read(cas, entry).await
    }

    fn find(&self, local: &Local, entry: &Entry) -> Result<Found, CasError> {
        let now = local.now();
        if let Some(parsed) = self.memo.get(&entry.digest)
            && local.stamp(entry) == Some(parsed.stamp)
        {
            let touched = parsed.touched.load(Ordering::Relaxed);
            if touched.checked_sub(1).is_some_and(|at| local.is_fresh(at, now)) {
                return Ok(Found::Remembered(parsed));
            }
            if local.touch(entry)? {
                parsed.touched.store(now + 1, Ordering::Relaxed);
                return Ok(Found::Remembered(parsed));
            }
        }
        Ok(if local.touch(entry)? { Found::Stored } else { Found::Absent })
    }

    /// Reads a result from the disk.
    async fn read(&self, cas: &Cas, entry: Entry) -> Result<Option<Arc<Parsed>>, CasError> {
        let read = cas.run_blocking(move |local| {
            let now = local.now();
            let Some((content, stamp)) = local.read_record(&entry)? else { return Ok(None) };
            let parsed = parse(&content, stamp, entry.digest.function, now);
            if parsed.is_none() {
                local.remove_damaged(&entry);
            }
            Ok(parsed.map(Arc::new))
        });
        let read = read.await?;
        if let Some(parsed) = &read {
            self.memo.insert(entry.digest, Arc::clone(parsed));
        }
        Ok(read)
    }
}

/// Whether the store has all that a result references; if so, all of it is kept for another `keep`.
async fn is_complete(cas: &Cas, parsed: &Parsed) -> Result<bool, CasError> {
    are_complete(cas, &parsed.blobs, &parsed.trees, &parsed.roots).await
}

async fn are_complete(
    cas: &Cas,
    blobs: &[BlobDigest],
    trees: &[BlobDigest],
    roots: &[BlobDigest],
) -> Result<bool, CasError> {
    if !cas.missing(blobs).await?.is_empty() {
        return Ok(false);
    }
    for tree in trees {
        match cas.trees().is_output_complete(cas, tree).await {
            Ok(true) => {}
            Ok(false) | Err(CasError::Malformed { .. }) => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    for root in roots {
        if cas.trees().check(cas, root, Rule::Any).await? != TreeCheck::Complete {
            return Ok(false);
        }
    }
    Ok(true)
}

fn parse(content: &[u8], stamp: Stamp, function: DigestFunction, now: Moment) -> Option<Parsed> {
    let result = ActionResult::decode(content).ok()?;
    let References { blobs, trees, roots } = references(&result, function).ok()?;
    Some(Parsed {
        stamp,
        result: Arc::new(result),
        blobs: blobs.into(),
        trees: trees.into(),
        roots: roots.into(),
        bytes: content.len() as u64,
        touched: AtomicU64::new(now + 1),
    })
}

/// The blobs that a result references.
struct References {
    blobs: Vec<BlobDigest>,
    trees: Vec<BlobDigest>,
    roots: Vec<BlobDigest>,
}

impl References {
    async fn are_complete(&self, cas: &Cas) -> Result<bool, CasError> {
        are_complete(cas, &self.blobs, &self.trees, &self.roots).await
    }
}

fn references(result: &ActionResult, function: DigestFunction) -> Result<References, String> {
    let read = |digest: &Digest| reapi::digest::from_proto(digest, function).map_err(|e| e.to_string());
    let all = |digests: &mut dyn Iterator<Item = &Digest>| digests.map(read).collect::<Result<Vec<_>, _>>();
    let directories = &result.output_directories;
    let trees = all(&mut directories.iter().filter_map(|output| output.tree_digest.as_ref()))?;
    let roots = all(&mut directories.iter().filter_map(|output| output.root_directory_digest.as_ref()))?;
    let streams = [&result.stdout_digest, &result.stderr_digest].into_iter().flatten();
    let mut blobs =
        all(&mut result.output_files.iter().filter_map(|output| output.digest.as_ref()).chain(streams))?;
    if result.output_files.iter().any(|output| output.digest.is_none()) {
        return Err("an output file has no digest".to_owned());
    }
    if directories.iter().any(|output| output.tree_digest.is_none() && output.root_directory_digest.is_none())
    {
        return Err("an output directory has no digest".to_owned());
    }
    blobs.extend(&trees);
    Ok(References { blobs, trees, roots })
}
