//! The action cache: results of actions by digest.

use std::{
    fs::{self, Metadata},
    io::Read as _,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use model::{BlobDigest, DigestFunction};
use prost::Message as _;
use reapi::execution::{ActionResult, Digest};

use crate::{
    Cas, CasError,
    action_memo::{Parsed, Stamp},
    directory_memo::Rule,
    layout::{BLOB_MODE, Entry},
    store::{Inner, add},
    tree::TreeCheck,
};

/// Maximum size in bytes of a stored result.
const RESULT_BYTES_MAX: u64 = 64 << 20;
/// Length of the content hash at the start of a record: these files have no digest to check them against.
const HASH_BYTES: usize = 32;

impl Cas {
    /// Returns the stored result of an action if everything it references is present: files, trees and their contents,
    /// standard output and error. If so, all of it is kept for another [`CasConfig::keep`](crate::CasConfig::keep).
    pub async fn get_action(
        &self,
        instance: &str,
        action: &BlobDigest,
    ) -> Result<Option<Arc<ActionResult>>, CasError> {
        let counters = &self.inner.counters;
        if let Some(farm) = self.farm() {
            // Only the farm knows which result is the latest, and it has checked that the result is complete.
            let found = farm.get_action(instance, action).await?;
            add(if found.is_some() { &counters.action_hits } else { &counters.action_misses }, 1);
            return Ok(found.map(Arc::new));
        }
        let entry = Entry::action(instance, action);
        let Some(parsed) = self.load_action(entry).await? else {
            add(&counters.action_misses, 1);
            return Ok(None);
        };
        if self.is_complete(&parsed).await? {
            add(&counters.action_hits, 1);
            return Ok(Some(Arc::clone(&parsed.result)));
        }
        add(&counters.action_incomplete, 1);
        tracing::debug!(%action, instance, "not serving a stored result: a blob that it references is gone");
        Ok(None)
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
        let entry = Entry::action(instance, action);
        self.put_record(entry, &result.encode_to_vec()).await
    }

    /// Removes the result of an action. Returns whether there was one.
    pub async fn remove_action(&self, instance: &str, action: &BlobDigest) -> Result<bool, CasError> {
        let entry = Entry::action(instance, action);
        if let Some(farm) = self.farm() {
            return Err(farm.no_removal());
        }
        let local = self.run_blocking(move |inner| inner.remove(&entry)).await?;
        let stored = match self.objects() {
            Some(objects) => objects.remove(&entry).await?,
            None => false,
        };
        Ok(local || stored)
    }

    async fn load_action(&self, entry: Entry) -> Result<Option<Arc<Parsed>>, CasError> {
        // This look-up takes less time than a handover to a blocking thread.
        let loaded = match self.inner.find_action(&entry)? {
            Found::Absent => None,
            Found::Remembered(parsed) => Some(parsed),
            Found::Stored => self.run_blocking(move |inner| inner.read_action(&entry)).await?,
        };
        if loaded.is_some() || !self.fetch_record(&entry).await? {
            return Ok(loaded);
        }
        self.run_blocking(move |inner| inner.read_action(&entry)).await
    }

    async fn is_complete(&self, parsed: &Parsed) -> Result<bool, CasError> {
        if !self.missing(&parsed.blobs).await?.is_empty() {
            return Ok(false);
        }
        for tree in &parsed.trees {
            match self.is_tree_complete(tree).await {
                Ok(true) => {}
                Ok(false) | Err(CasError::Malformed { .. }) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        for root in &parsed.roots {
            if self.walk(root, Rule::Any).await? != TreeCheck::Complete {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Stores a small record that is not a blob: first in the object store, then in the local tier.
    pub(crate) async fn put_record(&self, entry: Entry, content: &[u8]) -> Result<(), CasError> {
        // A farm accepts only blobs and action results.
        let through = self.objects().is_some();
        if self.inner.refuses(content.len() as u64) && !through {
            return Err(CasError::Full);
        }
        let mut record = DigestFunction::Sha256.digest(content).hash.to_vec();
        record.extend_from_slice(content);
        if let Some(objects) = self.objects() {
            objects.put(&entry, record.clone().into()).await?;
        }
        match self.run_blocking(move |inner| inner.write_record(&entry, &record)).await {
            Err(CasError::Full) if through => Ok(()),
            outcome => outcome,
        }
    }

    /// Copies a record from the object store to the local tier. Returns whether there is one.
    pub(crate) async fn fetch_record(&self, entry: &Entry) -> Result<bool, CasError> {
        let Some(objects) = self.objects() else { return Ok(false) };
        let Some(record) = objects.get_whole(entry, RESULT_BYTES_MAX).await? else { return Ok(false) };
        let entry = *entry;
        self.run_blocking(move |inner| inner.write_record(&entry, &record)).await?;
        Ok(true)
    }
}

/// State of an action's result in the local tier.
enum Found {
    Absent,
    Remembered(Arc<Parsed>),
    /// It is on the disk, and its life was just extended.
    Stored,
}

impl Inner {
    fn find_action(&self, entry: &Entry) -> Result<Found, CasError> {
        let path = self.disk.layout.path(entry);
        let now = self.known.now();
        if let Some(parsed) = self.actions.get(&entry.digest)
            && fs::metadata(&path).is_ok_and(|meta| Stamp::of(&meta) == parsed.stamp)
        {
            let touched = parsed.touched.load(Ordering::Relaxed);
            if touched.checked_sub(1).is_some_and(|at| self.known.is_fresh(at, now)) {
                return Ok(Found::Remembered(parsed));
            }
            if self.disk.touch(entry)? {
                parsed.touched.store(now + 1, Ordering::Relaxed);
                return Ok(Found::Remembered(parsed));
            }
        }
        Ok(if self.disk.touch(entry)? { Found::Stored } else { Found::Absent })
    }

    fn read_action(&self, entry: &Entry) -> Result<Option<Arc<Parsed>>, CasError> {
        let path = self.disk.layout.path(entry);
        let now = self.known.now();
        let Some((content, meta)) = self.read_record(entry, &path)? else { return Ok(None) };
        let Some(parsed) = parse(&content, &meta, entry.digest.function, now) else {
            self.disk.remove_damaged(&path);
            return Ok(None);
        };
        let parsed = Arc::new(parsed);
        self.actions.insert(entry.digest, Arc::clone(&parsed));
        Ok(Some(parsed))
    }

    /// Returns the content of a record; `None` if it is gone or was damaged and is now removed.
    pub(crate) fn read_record(
        &self,
        entry: &Entry,
        path: &Path,
    ) -> Result<Option<(Vec<u8>, Metadata)>, CasError> {
        let failed = |source| CasError::disk("reading", path, source);
        let Some(mut file) = self.disk.open_file(entry)? else { return Ok(None) };
        let meta = file.metadata().map_err(failed)?;
        let mut hash = [0; HASH_BYTES];
        let mut content = Vec::new();
        let whole = file.read_exact(&mut hash).and_then(|()| file.read_to_end(&mut content));
        match whole {
            Ok(_) if DigestFunction::Sha256.digest(&content).hash == hash => Ok(Some((content, meta))),
            Err(error) if error.kind() != std::io::ErrorKind::UnexpectedEof => Err(failed(error)),
            Ok(_) | Err(_) => {
                self.disk.remove_damaged(path);
                Ok(None)
            }
        }
    }

    fn write_record(&self, entry: &Entry, record: &[u8]) -> Result<(), CasError> {
        let temp = self.disk.temp_beside(entry, BLOB_MODE, record)?;
        self.used(self.disk.commit(temp, entry, true)?);
        Ok(())
    }

    fn remove(&self, entry: &Entry) -> Result<bool, CasError> {
        let path = self.disk.layout.path(entry);
        match fs::remove_file(&path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(CasError::disk("removing", &path, error)),
        }
    }
}

fn parse(content: &[u8], meta: &Metadata, function: DigestFunction, now: u64) -> Option<Parsed> {
    let result = ActionResult::decode(content).ok()?;
    let References { blobs, trees, roots } = references(&result, function).ok()?;
    Some(Parsed {
        stamp: Stamp::of(meta),
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
