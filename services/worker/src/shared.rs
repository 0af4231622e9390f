//! The state shared by all loops of the worker.

use std::path::PathBuf;

use callers::BuildTokens;
use cas::Cas;
use model::{Build, Group, Millis, WorkerId};
use policy::zones::Zones;
use sandbox::Cgroups;
use sensors::{MachineLock, OomKills};
use service::Context;
use settings::WorkerSettings;
use tracing::warn;

use crate::{
    folder::WorkerFolder, gateway::Gateways, image::BuildImages, isolation::Isolation, offered::Offered,
    secret_files::SecretMemory, sources::Sources, usage::Usage, workspaces::Workspaces,
};

/// State shared by all loops of the worker.
pub(crate) struct Shared {
    pub(crate) context: Context,
    pub(crate) settings: WorkerSettings,
    pub(crate) id: WorkerId,
    pub(crate) host: String,
    pub(crate) started_at: Millis,
    /// The whole store; builds see it by [`Shared::store_of`].
    pub(crate) cas: Cas,
    pub(crate) zones: Zones,
    pub(crate) folder: WorkerFolder,
    pub(crate) workspaces: Workspaces,
    pub(crate) usage: Usage,
    pub(crate) gateways: Gateways,
    pub(crate) oom: OomKills,
    pub(crate) machine: MachineLock,
    pub(crate) isolation: Isolation,
    /// The executable of shims.
    pub(crate) program: PathBuf,
    pub(crate) cgroups: Cgroups,
    /// The images of this machine, if builds may have them.
    pub(crate) images: Option<BuildImages>,
    /// What the worker offers to builds.
    pub(crate) offered: Offered,
    /// Where secrets are in memory, if builds may have some.
    pub(crate) secret_memory: Option<SecretMemory>,
    pub(crate) sources: Sources,
    /// Signs the tokens of builds, if the settings name a key.
    pub(crate) build_tokens: Option<BuildTokens>,
}

impl Shared {
    /// The store as builds of a group see it.
    pub(crate) fn store_of(&self, group: &Group) -> Cas {
        let sight = self.zones.sight_of_group(group);
        sight.map_or_else(|| self.cas.clone(), |sight| self.cas.seen_by(&sight))
    }

    /// Whether the workspace of a build may be kept for the next one. What a tag means may change, and what the image made that
    /// it meant before would stay.
    pub(crate) fn may_be_warm(&self, build: &Build) -> bool {
        let is_fixed = |image: model::ImageReference| image.digest().is_some();
        self.settings.warm_workspaces && BuildImages::asked(build).is_none_or(is_fixed)
    }

    /// Removes the files of a build that ends because of the disk, before anything waits for the bus: the bus may be
    /// waiting for this space.
    pub(crate) fn empty_workspace(&self, number: u16) {
        if let Err(error) = self.folder.empty(number) {
            warn!(workspace = number, %error, "cannot empty the workspace before its build ends");
        }
    }
}
