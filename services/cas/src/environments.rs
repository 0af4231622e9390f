//! Makes the images of environments: starts the build of an approved version, and records what became of it.
//!
//! What is under way is in the bucket only: any number of processes may do this, and the first result counts.

use std::{collections::HashSet, time::Duration};

use bus::{EnvironmentChanged, EventKind};
use cas::Cas;
use client::{Client, ClientError, WatchBody};
use images::{ImageError, Images, PullProgress, blobs_of_stored, manifest_of_layout};
use model::{
    BlobDigest, BuildId, BuildKey, BuildRequest, BuildResult, Digest, Environment, EnvironmentDefinition,
    EnvironmentName, EnvironmentState, EnvironmentVersion, ErrorCode, Group, Outcome as BuildOutcome,
    PinnedImage, Sequence, Zone,
};
use policy::{
    environments::{IMAGE_INDEX, Outcome, REFUSED, build_request},
    zones::Zones,
};
use telemetry::error_chain;
use tokio::task::JoinSet;
use tracing::{info, warn};

/// Time after which all environments are read again, for a change that was missed.
const REPAIR: Duration = Duration::from_secs(60);
/// Pause before another try after a failure of the bus or the store.
const RETRY: Duration = Duration::from_secs(5);
/// Maximum bytes of an `index.json` that is read.
const INDEX_BYTES_MAX: u64 = 1 << 20;

/// An approved version that has no result yet.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Pending {
    name: EnvironmentName,
    number: u32,
    build: Option<BuildId>,
}

/// Makes what is approved until it is dropped.
pub(crate) async fn make(client: Client, (cas, of_images): (Cas, Cas), zones: Zones, images: Images) {
    let maker = Maker { client: client.clone(), cas, of_images, zones, images };
    let mut making = Making { client, maker, pending: HashSet::new(), tasks: JoinSet::new() };
    loop {
        if let Err(error) = making.follow().await {
            warn!(error = error_chain(&error), "cannot read the environments, retrying");
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// What a task needs to make a version. Cheap to clone.
#[derive(Clone)]
struct Maker {
    client: Client,
    cas: Cas,
    /// The store as images see it.
    of_images: Cas,
    zones: Zones,
    /// Images are unpacked here to find out whether they can be used.
    images: Images,
}

struct Making {
    client: Client,
    maker: Maker,
    /// What has a task.
    pending: HashSet<Pending>,
    tasks: JoinSet<Pending>,
}

impl Maker {
    /// The store as the group sees it that proposed a version or runs its build, else as the default zone does.
    fn seen_by(&self, group: Option<&Group>) -> Cas {
        let sight = match group {
            Some(group) => self.zones.sight_of_group(group),
            None => self.zones.are_used().then(|| self.zones.sight(Zone::default())),
        };
        sight.map_or_else(|| self.cas.clone(), |sight| self.cas.seen_by(&sight))
    }

    /// Lets images have the blobs of the versions that are ready: they may be from a time when the farm had no zones.
    async fn show_to_images(&self, environment: &Environment) {
        for version in &environment.versions {
            let EnvironmentState::Ready { blobs, .. } = &version.state else { continue };
            if let Err(error) = self.of_images.prove(blobs).await {
                let error = error_chain(&error);
                warn!(environment = %environment.name, version = version.number, error, "its image cannot be used yet");
            }
        }
    }
}

impl Making {
    /// Starts a task for each version that is approved, now or later. Ends if the subscription does.
    async fn follow(&mut self) -> Result<(), ClientError> {
        let mut changes = self.client.bus().buckets().changes::<EnvironmentChanged>().await?;
        loop {
            for environment in self.client.environments().await? {
                self.start(&environment);
                self.maker.show_to_images(&environment).await;
            }
            tokio::select! {
                next = changes.next() => if next.is_none() { return Ok(()) },
                Some(ended) = self.tasks.join_next() => if let Ok(ended) = ended {
                    self.pending.remove(&ended);
                },
                () = tokio::time::sleep(REPAIR) => {}
            }
        }
    }

    fn start(&mut self, environment: &Environment) {
        for version in &environment.versions {
            let EnvironmentState::Approved { build } = version.state else { continue };
            let pending = Pending { name: environment.name.clone(), number: version.number, build };
            if self.pending.insert(pending.clone()) {
                let (maker, version) = (self.maker.clone(), version.clone());
                self.tasks.spawn(async move {
                    finish(&maker, &pending, &version).await;
                    pending
                });
            }
        }
    }
}

/// Why a version was not made.
#[derive(Debug, thiserror::Error)]
enum NotMade {
    /// Another attempt would end the same.
    #[error("{0}")]
    Failed(String),
    /// The bus or the store does not answer.
    #[error(transparent)]
    Bus(#[from] ClientError),
    #[error(transparent)]
    Store(ImageError),
}

impl From<ImageError> for NotMade {
    fn from(error: ImageError) -> Self {
        if error.is_final() {
            return Self::Failed(format!("its image cannot be used: {}", error_chain(&error)));
        }
        Self::Store(error)
    }
}

/// Makes a version and records the result, however often the bus or the store fails meanwhile.
async fn finish(maker: &Maker, pending: &Pending, version: &EnvironmentVersion) {
    let Pending { name, number, build } = pending;
    loop {
        let outcome = match make_version(maker, pending, version).await {
            Ok(blobs) => Ok(blobs),
            Err(NotMade::Failed(reason)) => Ok(Outcome::Failed(reason)),
            Err(error) => Err(error),
        };
        let finished = match &outcome {
            Ok(outcome) => maker.client.finish_environment(name, (*number, *build), outcome).await,
            Err(_) => Ok(false),
        };
        let error = match (&outcome, &finished) {
            // Another process was first, or it was removed.
            (Ok(_), Ok(false)) => return,
            (Ok(Outcome::Stored { image, .. }), Ok(_)) => {
                info!(environment = %name, version = number, %image, "an environment is ready");
                return;
            }
            (Ok(Outcome::Failed(reason)), Ok(_)) => {
                warn!(environment = %name, version = number, reason, "an environment has failed");
                return;
            }
            // It was removed.
            (Ok(_), Err(ClientError::Api(error))) if error.error == ErrorCode::NotFound => return,
            (Ok(_), Err(error)) => error_chain(error),
            (Err(error), _) => error_chain(error),
        };
        warn!(environment = %name, version = number, error, "cannot make an environment, retrying");
        tokio::time::sleep(RETRY).await;
    }
}

async fn make_version(
    maker: &Maker,
    pending: &Pending,
    version: &EnvironmentVersion,
) -> Result<Outcome, NotMade> {
    let Maker { client, of_images, images, .. } = maker;
    let (cas, manifest) = match (&version.definition, pending.build) {
        (EnvironmentDefinition::Stored(manifest), _) => (maker.seen_by(pending.name.group()), *manifest),
        (EnvironmentDefinition::Recipe(recipe), Some(id)) => {
            let request = build_request((&pending.name, pending.number), recipe, id);
            let key = pending.name.build_key(id);
            let result = run(client, &key, &request).await?;
            let cas = maker.seen_by(Some(&key.group));
            let manifest = manifest_of(&cas, &result).await?;
            (cas, manifest)
        }
        (EnvironmentDefinition::Recipe(_), None) | (EnvironmentDefinition::Image(_), _) => {
            return Err(NotMade::Failed("it was approved without a build".to_owned()));
        }
    };
    // Only what its zone has: images show the blobs to who knows their digests.
    let blobs = blobs_of_stored(&cas, &manifest).await?;
    of_images.prove(&blobs).await.map_err(|error| NotMade::Store(ImageError::Store(error)))?;
    let image = pending.name.stored_image(Digest::of_blob(&manifest));
    // What cannot be unpacked must not replace a version that can.
    images.get(&PinnedImage { reference: image.clone(), manifest }, &PullProgress::default()).await?;
    Ok(Outcome::Stored { image, blobs })
}

/// Queues a build, unless it was, and waits for its result.
async fn run(client: &Client, key: &BuildKey, request: &BuildRequest) -> Result<BuildResult, NotMade> {
    match client.create(&key.group, request, None).await {
        Ok(_) => {}
        Err(ClientError::Api(error)) if error.error != ErrorCode::Unavailable => {
            return Err(NotMade::Failed(format!("{REFUSED}: {error}")));
        }
        Err(error) => return Err(error.into()),
    }
    let mut watch = client.watch(key, Sequence(0), &[EventKind::Lifecycle]);
    while let Some(event) = watch.next().await? {
        if let WatchBody::Lifecycle(record) = event.body
            && let Some(result) = record.result()
        {
            return Ok(result.clone());
        }
    }
    Err(NotMade::Failed("its build ended without a result".to_owned()))
}

/// The manifest of the image that a build made.
async fn manifest_of(cas: &Cas, result: &BuildResult) -> Result<BlobDigest, NotMade> {
    if result.outcome != BuildOutcome::Succeeded {
        let why = match &result.reason {
            Some(reason) => format!(": {}", reason.message),
            None => String::new(),
        };
        return Err(NotMade::Failed(format!("its build {}{why}", result.outcome.as_str())));
    }
    let index = result.outputs.iter().find(|output| output.path == IMAGE_INDEX);
    let index = index.ok_or_else(|| NotMade::Failed(format!("its build has no output {IMAGE_INDEX}")))?;
    let content = cas.read_whole(&index.blob(), INDEX_BYTES_MAX).await;
    let content = content.map_err(|error| {
        if error.is_about_content() {
            return NotMade::Failed(format!("{IMAGE_INDEX} cannot be read: {}", error_chain(&error)));
        }
        NotMade::Store(ImageError::Store(error))
    })?;
    Ok(manifest_of_layout(&content)?)
}
