//! The images of a machine.

use std::{
    any::Any,
    collections::HashMap,
    fs, io,
    path::PathBuf,
    sync::{Arc, Weak},
    time::Duration,
};

use bytes::Bytes;
use cas::Cas;
use futures::{FutureExt as _, StreamExt as _, TryStreamExt as _, stream};
use model::{BlobDigest, Digest, ImageReference, PinnedImage};
use parking_lot::Mutex;
use sandbox::ImageRoot;
use tokio::{
    sync::{Notify, mpsc, watch},
    task::spawn_blocking,
};
use tracing::{debug, info, warn};

use crate::{
    bounded::{Bounded, Pieces},
    cache::{Cache, Held},
    error::ImageError,
    fetches::Fetches,
    manifest::{Descriptor, Document, ImageConfig, MANIFEST_BYTES_MAX, of_this_machine, read_config},
    merge, mount_points,
    names::ImageNames,
    place::{Whiteouts, can_overlay},
    progress::PullProgress,
    registry::Registries,
    tree::ImageTree,
    unpack::unpack,
    unpacked::Unpacked,
    user::ImageUser,
};

/// Layers of an image that are fetched and unpacked at once.
const AT_ONCE: usize = 4;
/// Pieces of a layer between the store and the thread that unpacks it.
const AHEAD: usize = 8;
/// Pause before new layers are written to the disk for good: several of an image are written together.
const SYNC_PAUSE: Duration = Duration::from_secs(5);
/// Maximum number of images whose documents are remembered.
const KNOWN_MAX: usize = 1000;

/// The images of a machine: unpacked layers in a folder that several executors share. Clones are one.
#[derive(Clone)]
pub struct Images {
    parts: Arc<Parts>,
}

struct Parts {
    cas: Cas,
    registries: Registries,
    names: ImageNames,
    folder: PathBuf,
    layers: Cache,
    /// Combined layers; `None` if they are mounted as overlay.
    combined: Option<Cache>,
    bytes_max: u64,
    known: Mutex<HashMap<BlobDigest, Arc<Parsed>>>,
    /// Images in use: another action in one of them needs no look at the disk.
    used: Mutex<HashMap<BlobDigest, Weak<Image>>>,
    /// Those that are unpacked, whether in use or not.
    unpacked: Unpacked,
    fetches: Fetches,
    /// Notified after something was unpacked.
    more: Notify,
}

/// The documents of an image.
#[derive(Debug)]
struct Parsed {
    /// Digest of the manifest for this machine.
    manifest: Digest,
    config: ImageConfig,
    layers: Vec<(Descriptor, Digest)>,
}

/// An image that can be used: its files stay while this exists.
#[derive(Debug)]
pub struct Image {
    /// Digest of its manifest.
    pub digest: Digest,
    pub config: ImageConfig,
    /// The user that its commands see themselves as; `None` if it names none.
    pub user: Option<ImageUser>,
    files: Files,
    _held: Vec<Held>,
}

/// Where the files of an image are.
#[derive(Debug)]
enum Files {
    /// In these folders, the topmost first, which are to be mounted as overlay at `at`.
    Layers { lower: Vec<PathBuf>, at: PathBuf },
    /// Combined in this one folder.
    Folder(PathBuf),
}

impl Files {
    /// The folders that its files are in, the topmost first.
    fn folders(&self) -> Vec<PathBuf> {
        match self {
            Self::Layers { lower, .. } => lower.clone(),
            Self::Folder(folder) => vec![folder.clone()],
        }
    }
}

/// Finds the user that an image names, among its files.
async fn user_of(named: String, folders: Vec<PathBuf>) -> Result<ImageUser, ImageError> {
    let find = move || ImageUser::find(&named, &ImageTree::open(&folders)?);
    spawn_blocking(find).await.map_err(joined)?
}

impl Image {
    /// The environment of a command in the image: its own variables, then those of the image that it does not set.
    pub fn complete(&self, own: Vec<(String, String)>) -> Vec<(String, String)> {
        let is_set = |name: &str| own.iter().any(|(other, _)| other == name);
        let missing: Vec<_> = self.config.env.iter().filter(|(name, _)| !is_set(name)).cloned().collect();
        own.into_iter().chain(missing).collect()
    }

    /// The image as the root of a sandbox, which keeps its files.
    pub fn root(self: &Arc<Self>) -> ImageRoot {
        let (at, lower) = match &self.files {
            Files::Layers { lower, at } => (at.clone(), lower.clone()),
            Files::Folder(folder) => (folder.clone(), Vec::new()),
        };
        let keep: Arc<dyn Any + Send + Sync> = Arc::clone(self) as _;
        let user = self.user.as_ref().map(|user| user.ids);
        ImageRoot { id: self.digest.to_string(), at, lower, writable_bytes: None, user, keep }
    }
}

impl std::fmt::Debug for Images {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Images").field("folder", &self.parts.folder).finish_non_exhaustive()
    }
}

/// The name of an unpacked layer: to get that of another image, one must know its blob, too.
fn entry_of(diff_id: &Digest, blob: &BlobDigest) -> Digest {
    Digest::of(format!("{diff_id} {blob}").as_bytes())
}

impl Images {
    /// Opens the images in `folder`. Layers take at most `bytes_max` bytes, without those
    /// in use. `may_overlay`: whether this machine mounts overlays.
    ///
    /// Fails if the folder cannot be written.
    pub fn open(
        folder: PathBuf,
        bytes_max: u64,
        may_overlay: bool,
        (cas, registries): (Cas, Registries),
    ) -> Result<Self, ImageError> {
        fs::create_dir_all(&folder)
            .map_err(|source| ImageError::file(format!("creating {}", folder.display()), source))?;
        let probed = can_overlay(&folder);
        let overlays = may_overlay
            && probed.map_err(|source| ImageError::file(format!("writing {}", folder.display()), source))?;
        mount_points::make(&folder)?;
        let name = if overlays { "layers" } else { "layers-to-combine" };
        let layers = Cache::open(folder.join(name))?;
        let combined = (!overlays).then(|| Cache::open(folder.join("combined"))).transpose()?;
        let names = ImageNames::new(cas.clone(), registries.clone());
        let parts = Parts {
            cas,
            registries,
            names,
            folder,
            layers,
            combined,
            bytes_max,
            known: Mutex::default(),
            used: Mutex::default(),
            unpacked: Unpacked::default(),
            fetches: Fetches::default(),
            more: Notify::new(),
        };
        Ok(Self { parts: Arc::new(parts) })
    }

    /// Whether images are mounted as overlay; otherwise their layers are combined in a folder.
    pub fn overlays(&self) -> bool {
        self.parts.combined.is_none()
    }

    /// Starts to remove unused layers beyond the limit and to write new ones to the disk, whenever layers were
    /// unpacked, until `stop` is over.
    pub fn maintain_until(&self, stop: impl Future<Output = ()> + Send + 'static) {
        let images = self.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = stop => {}
                never = images.maintain() => match never {},
            }
        });
    }

    async fn maintain(&self) -> std::convert::Infallible {
        loop {
            self.parts.more.notified().await;
            let evicted = self.evict(self.parts.bytes_max).await;
            if let Err(error) = evicted {
                warn!(error = telemetry::error_chain(&error), "removing unused layers failed");
            }
            tokio::time::sleep(SYNC_PAUSE).await;
            let parts = Arc::clone(&self.parts);
            let synced = spawn_blocking(move || parts.caches().try_for_each(Cache::sync)).await;
            if let Ok(Err(error)) = synced {
                warn!(error = telemetry::error_chain(&error), "writing layers to the disk failed");
            }
        }
    }

    /// Removes all layers that nothing uses. Returns how many.
    ///
    /// Fails if the folder cannot be read or changed.
    pub async fn remove_unused(&self) -> Result<u64, ImageError> {
        self.evict(0).await
    }

    /// Removes unused layers until all others take at most `most` bytes.
    async fn evict(&self, most: u64) -> Result<u64, ImageError> {
        let parts = Arc::clone(&self.parts);
        let evict = move || parts.caches().map(|cache| cache.evict(most)).sum::<Result<u64, _>>();
        let evicted = spawn_blocking(evict).await.map_err(joined)??;
        if evicted > 0 {
            let images = self.clone();
            let look = move || {
                let mut all = images.unpacked();
                all.retain(|image| images.is_ready(image));
                images.parts.unpacked.retain(|image| all.contains(image));
            };
            spawn_blocking(look).await.map_err(joined)?;
        }
        Ok(evicted)
    }

    /// The images that are unpacked here, the last used first: at most 100, and only those that this process has used.
    pub fn unpacked(&self) -> Vec<PinnedImage> {
        self.parts.unpacked.all()
    }

    /// Is changed when other images are among [`Images::unpacked`].
    pub fn changes(&self) -> watch::Receiver<()> {
        self.parts.unpacked.changes()
    }

    /// Whether an image is among [`Images::unpacked`].
    pub fn has_unpacked(&self, image: &PinnedImage) -> bool {
        self.parts.unpacked.has(&image.manifest)
    }

    /// The image that a name means, see [`ImageNames::pin`].
    pub async fn pin(&self, image: &ImageReference) -> Result<PinnedImage, ImageError> {
        self.parts.names.pin(image).await
    }

    /// Fetches and unpacks what this machine does not have of an image. Each layer is fetched once, for all callers, also
    /// in several processes. `progress` is informed.
    ///
    /// Fails if a part cannot be fetched, or if the image is invalid or too large.
    pub async fn get(&self, image: &PinnedImage, progress: &PullProgress) -> Result<Arc<Image>, ImageError> {
        if let Some(used) = self.in_use(image) {
            return Ok(used);
        }
        let found = self.open_image(image, progress).await;
        match &found {
            Ok(_) => self.parts.unpacked.used(image),
            Err(_) => self.parts.unpacked.retain(|other| other.manifest != image.manifest),
        }
        found
    }

    async fn open_image(
        &self,
        image: &PinnedImage,
        progress: &PullProgress,
    ) -> Result<Arc<Image>, ImageError> {
        let parsed = self.parsed(image).await?;
        let getting: Vec<_> = (parsed.layers.iter())
            .map(|(layer, diff_id)| self.layer(image, layer, diff_id, progress).boxed())
            .collect();
        let layers: Vec<Held> = stream::iter(getting).buffered(AT_ONCE).try_collect().await?;
        let digest = parsed.manifest.clone();
        let (files, held) = if self.overlays() {
            let top = mount_points::folder(&self.parts.folder);
            let mut lower = vec![top];
            for layer in layers.iter().rev().map(|layer| layer.content().to_owned()) {
                // The kernel takes each folder once. The topmost copy of a layer hides all of the lower ones.
                if !lower.contains(&layer) {
                    lower.push(layer);
                }
            }
            (Files::Layers { lower, at: mount_points::mount(&self.parts.folder) }, layers)
        } else {
            let combined = self.combined(&digest, layers).await?;
            (Files::Folder(combined.content().to_owned()), vec![combined])
        };
        let mut config = parsed.config.clone();
        let named = match config.user.clone() {
            Some(name) => Some(user_of(name, files.folders()).await?),
            None => None,
        };
        if let Some(user) = &named
            && config.env.iter().all(|(name, _)| name != "HOME")
        {
            config.env.push(("HOME".to_owned(), user.home.clone()));
        }
        let found = Arc::new(Image { digest, config, user: named, files, _held: held });
        let mut used = self.parts.used.lock();
        used.retain(|_, image| image.strong_count() > 0);
        used.insert(image.manifest, Arc::downgrade(&found));
        Ok(found)
    }

    /// An image that something uses already: it needs no look at the disk.
    pub fn in_use(&self, image: &PinnedImage) -> Option<Arc<Image>> {
        let used = self.used(image)?;
        self.parts.unpacked.used(image);
        Some(used)
    }

    fn used(&self, image: &PinnedImage) -> Option<Arc<Image>> {
        self.parts.used.lock().get(&image.manifest).and_then(Weak::upgrade)
    }

    /// Whether all layers of an image are unpacked here, as far as that is known without reading.
    pub fn is_ready(&self, image: &PinnedImage) -> bool {
        if self.used(image).is_some() {
            return true;
        }
        let known = self.parts.known.lock().get(&image.manifest).cloned();
        known.is_some_and(|parsed| {
            parsed.layers.iter().all(|(_, id)| self.parts.layers.hold(id).is_ok_and(|held| held.is_some()))
        })
    }

    /// The documents of an image.
    async fn parsed(&self, image: &PinnedImage) -> Result<Arc<Parsed>, ImageError> {
        if let Some(known) = self.parts.known.lock().get(&image.manifest) {
            return Ok(Arc::clone(known));
        }
        let top = self.manifest(image).await?;
        let (content, digest) = match Document::read(&top)? {
            Document::Manifest(_) => (top, Digest::of_blob(&image.manifest)),
            Document::Index(manifests) => {
                let of_machine = of_this_machine(&manifests)?;
                let pinned = PinnedImage {
                    reference: image.reference.pinned(of_machine.digest().clone()),
                    manifest: of_machine.blob(),
                };
                let content = self.manifest(&pinned).await?;
                (content, of_machine.digest().clone())
            }
        };
        let Document::Manifest(manifest) = Document::read(&content)? else {
            return Err(ImageError::Invalid("its index names another index".to_owned()));
        };
        let config = self.document(image, &manifest.config.blob()).await?;
        let (config, diff_ids) = read_config(&config, manifest.layers.len())?;
        let layers = manifest.layers.into_iter().zip(diff_ids).collect();
        let parsed = Arc::new(Parsed { manifest: digest, config, layers });
        let mut known = self.parts.known.lock();
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        known.insert(image.manifest, Arc::clone(&parsed));
        Ok(parsed)
    }

    /// The manifest of the store, or else of the registry.
    async fn manifest(&self, image: &PinnedImage) -> Result<Bytes, ImageError> {
        if let Some(content) = self.stored(&image.manifest).await? {
            return Ok(content);
        }
        let found = self.parts.registries.manifest(&image.reference, &self.parts.cas).await?;
        self.stored(&found).await?.ok_or_else(|| gone("manifest"))
    }

    /// A small blob of the store.
    async fn stored(&self, blob: &BlobDigest) -> Result<Option<Bytes>, ImageError> {
        if blob.size > MANIFEST_BYTES_MAX {
            let why =
                format!("a document of it has {} bytes, at most {MANIFEST_BYTES_MAX} are read", blob.size);
            return Err(ImageError::Invalid(why));
        }
        self.parts.cas.get(blob).await.map_err(ImageError::Store)
    }

    /// A small blob of the store, or else of the registry.
    async fn document(&self, image: &PinnedImage, blob: &BlobDigest) -> Result<Bytes, ImageError> {
        if let Some(content) = self.stored(blob).await? {
            return Ok(content);
        }
        self.parts.registries.blob(&image.reference, blob, &self.parts.cas, &|_| ()).await?;
        self.stored(blob).await?.ok_or_else(|| gone("configuration"))
    }

    /// A layer, unpacked if it was not.
    async fn layer(
        &self,
        image: &PinnedImage,
        layer: &Descriptor,
        diff_id: &Digest,
        progress: &PullProgress,
    ) -> Result<Held, ImageError> {
        let entry = entry_of(diff_id, &layer.blob());
        loop {
            if let Some(held) = self.parts.layers.hold(&entry)? {
                return Ok(held);
            }
            self.unpack(image, layer, diff_id, progress).await?;
        }
    }

    async fn unpack(
        &self,
        image: &PinnedImage,
        layer: &Descriptor,
        diff_id: &Digest,
        progress: &PullProgress,
    ) -> Result<(), ImageError> {
        let blob = layer.blob();
        if blob.size > self.parts.bytes_max {
            let (bytes, most) = (blob.size, self.parts.bytes_max);
            return Err(ImageError::Invalid(format!(
                "a layer of it has {bytes} bytes, at most {most} are unpacked (image_bytes_max)"
            )));
        }
        progress.announce(blob.size);
        let begun = tokio::time::Instant::now();
        // Before the right to make the layer: another image has the same one, perhaps from a registry that answers.
        self.fetch(image, &blob, progress).await?;
        let pulled = begun.elapsed();
        let (parts, id) = (Arc::clone(&self.parts), entry_of(diff_id, &blob));
        // Another one may have made it in the meantime.
        let made = spawn_blocking(move || parts.layers.make(&id)).await.map_err(joined)??;
        let Ok(making) = made else { return Ok(()) };
        let (sender, pieces) = mpsc::channel(AHEAD);
        let parts = Arc::clone(&self.parts);
        let (id, whiteouts) = (diff_id.clone(), self.whiteouts());
        let unpacking = spawn_blocking(move || {
            let mut content = Bounded::new(Pieces::new(pieces), id, blob.size, parts.bytes_max)?;
            let unpacked = unpack(&mut content, &making.content(), whiteouts)?;
            parts.layers.made(&making, unpacked.bytes)?;
            Ok(unpacked)
        });
        let sent = self.send(&blob, sender).await;
        let unpacked = unpacking.await.map_err(joined)?;
        // What the layer says about itself matters more than that its reader ended.
        let unpacked = match (unpacked, sent) {
            (Err(error), _) if error.is_final() => return Err(error),
            (_, Err(error)) | (Err(error), Ok(())) => return Err(error),
            (Ok(unpacked), Ok(())) => unpacked,
        };
        debug!(%diff_id, ?unpacked, pull_ms = pulled.as_millis(), all_ms = begun.elapsed().as_millis(), "unpacked a layer");
        self.parts.more.notify_one();
        Ok(())
    }

    /// Copies a blob to the store if it is not there, once for all callers in all processes.
    async fn fetch(
        &self,
        image: &PinnedImage,
        blob: &BlobDigest,
        progress: &PullProgress,
    ) -> Result<(), ImageError> {
        if self.parts.cas.contains(blob).await.map_err(ImageError::Store)? {
            return Ok(());
        }
        let registry = image.reference.registry();
        let _turn = self.parts.fetches.turn(registry, blob).await;
        let (parts, name) = (Arc::clone(&self.parts), Digest::of(format!("{registry} {blob}").as_bytes()));
        let locking = spawn_blocking(move || parts.layers.fetching(&name));
        let _lock = locking.await.map_err(joined)??;
        if self.parts.cas.contains(blob).await.map_err(ImageError::Store)? {
            return Ok(());
        }
        let count = |bytes| progress.add(bytes);
        self.parts.registries.blob(&image.reference, blob, &self.parts.cas, &count).await
    }

    fn whiteouts(&self) -> Whiteouts {
        if self.overlays() { Whiteouts::Overlay } else { Whiteouts::Files }
    }

    /// Sends a blob of the store, and an empty piece at the end, as far as it is wanted.
    async fn send(&self, blob: &BlobDigest, to: mpsc::Sender<Bytes>) -> Result<(), ImageError> {
        let stored = self.parts.cas.read(blob, 0, None).await.map_err(ImageError::Store)?;
        let mut pieces = stored.ok_or_else(|| gone("layer"))?;
        while let Some(piece) = pieces.next().await {
            let piece = piece.map_err(ImageError::Store)?;
            if !piece.is_empty() && to.send(piece).await.is_err() {
                return Ok(());
            }
        }
        // The reader may have ended before the end of the blob.
        let _ = to.send(Bytes::new()).await;
        Ok(())
    }

    /// The combined layers of an image.
    async fn combined(&self, manifest: &Digest, layers: Vec<Held>) -> Result<Held, ImageError> {
        let (parts, manifest) = (Arc::clone(&self.parts), manifest.clone());
        let combine = move || {
            let Some(cache) = &parts.combined else { return Err(gone("folder of combined layers")) };
            loop {
                if let Some(held) = cache.hold(&manifest)? {
                    return Ok(held);
                }
                let making = match cache.make(&manifest)? {
                    Ok(making) => making,
                    Err(held) => return Ok(held),
                };
                let content = making.content();
                let mut bytes = 0;
                for layer in &layers {
                    bytes += merge::add(layer.content(), &content)?;
                }
                mount_points::add(&content)?;
                cache.made(&making, bytes)?;
                info!(%manifest, bytes, "combined the layers of an image");
            }
        };
        let held = spawn_blocking(combine).await.map_err(joined)??;
        self.parts.more.notify_one();
        Ok(held)
    }
}

impl Parts {
    fn caches(&self) -> impl Iterator<Item = &Cache> {
        [&self.layers].into_iter().chain(&self.combined)
    }
}

fn joined(error: tokio::task::JoinError) -> ImageError {
    ImageError::file("unpacking an image", io::Error::other(error))
}

fn gone(what: &str) -> ImageError {
    ImageError::file(format!("reading the {what} of an image"), io::ErrorKind::NotFound.into())
}
