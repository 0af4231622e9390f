//! Environments: names of images, with versions that a farm reviews, builds and keeps.

mod definition;
mod name;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{BlobDigest, BuildId, BuildKey, Digest, Group, ImageReference, Millis};

pub use definition::{EnvironmentBase, EnvironmentDefinition, EnvironmentRecipe};
pub use name::{AskedEnvironment, EnvironmentName};

/// An environment with its versions. JSON, one key per environment in the bucket `FOREBAY_ENVIRONMENTS`. Written by clients and the
/// service `cas` with compare-and-set; read by what looks the image of an action or build up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Environment {
    /// Name, unique in the farm.
    pub name: EnvironmentName,
    /// Versions by number, the oldest first. Without a version number, the name means the newest one that is ready.
    pub versions: Vec<EnvironmentVersion>,
    /// Highest number that a version ever had: no number is used twice.
    pub last_number: u32,
}

/// A version of an environment, whose definition never changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EnvironmentVersion {
    /// Number of the version, from 1.
    pub number: u32,
    /// How its image is made, or where it is.
    pub definition: EnvironmentDefinition,
    /// When and by what it was proposed.
    pub proposed: EnvironmentChange,
    /// When and by what it was approved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approved: Option<EnvironmentChange>,
    #[serde(flatten)]
    pub state: EnvironmentState,
}

/// Time and author of a change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EnvironmentChange {
    /// Time of the change.
    pub at_ms: Millis,
    /// Name that the client gave, up to 200 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

/// State of a version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum EnvironmentState {
    /// It waits for approval.
    Proposed,
    /// It is approved: its build runs, or its stored image is checked.
    Approved {
        /// Id of its build, in the group `environments`; absent for a stored image.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        build: Option<BuildId>,
    },
    /// Its image can be used.
    Ready {
        /// Its image; one that the farm stores is named by digest.
        image: ImageReference,
        /// Blobs of an image that the farm stores: its manifest first, then its configuration and layers.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        blobs: Vec<BlobDigest>,
        /// Id of the build that made it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        build: Option<BuildId>,
    },
    /// It could not be made.
    Failed {
        /// What went wrong, for people.
        reason: String,
        /// Id of the build that failed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        build: Option<BuildId>,
    },
}

impl EnvironmentState {
    /// Name of the state, for people.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Proposed => "proposed",
            Self::Approved { build: Some(_) } => "building",
            Self::Approved { build: None } => "checking",
            Self::Ready { .. } => "ready",
            Self::Failed { .. } => "failed",
        }
    }

    /// The build that makes or made the version.
    pub fn build(&self) -> Option<BuildId> {
        match self {
            Self::Proposed => None,
            Self::Approved { build } | Self::Ready { build, .. } | Self::Failed { build, .. } => *build,
        }
    }
}

impl Environment {
    pub fn version(&self, number: u32) -> Option<&EnvironmentVersion> {
        self.versions.iter().find(|version| version.number == number)
    }

    /// The newest version that is ready, with its image.
    pub fn current(&self) -> Option<(&EnvironmentVersion, &ImageReference)> {
        self.versions.iter().rev().find_map(|version| match &version.state {
            EnvironmentState::Ready { image, .. } => Some((version, image)),
            EnvironmentState::Proposed
            | EnvironmentState::Approved { .. }
            | EnvironmentState::Failed { .. } => None,
        })
    }

    /// Blobs that must be kept while the environment has these versions.
    pub fn blobs(&self) -> impl Iterator<Item = BlobDigest> {
        self.versions.iter().flat_map(|version| match (&version.state, &version.definition) {
            (EnvironmentState::Ready { blobs, .. }, _) => blobs.clone(),
            (_, EnvironmentDefinition::Stored(manifest)) => vec![*manifest],
            (_, EnvironmentDefinition::Recipe(_) | EnvironmentDefinition::Image(_)) => Vec::new(),
        })
    }
}

impl EnvironmentName {
    /// Its image in the farm's store, which has this manifest.
    pub fn stored_image(&self, manifest: Digest) -> ImageReference {
        ImageReference::of_farm(self.name(), manifest)
    }

    /// The key of one of its builds.
    pub fn build_key(&self, id: BuildId) -> BuildKey {
        BuildKey { group: Group::of_environments(), id }
    }
}

/// A new version of an environment, as clients of the HTTP API propose it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProposeEnvironmentRequest {
    /// Name of the environment, which may be new.
    pub name: EnvironmentName,
    /// Definition of the version.
    pub definition: EnvironmentDefinition,
    /// Author of the proposal, up to 200 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

/// Approval or removal of a version of an environment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeEnvironmentRequest {
    /// Name of the environment.
    pub name: EnvironmentName,
    /// Number of the version. Default: for an approval the newest version that waits for one, for a removal all versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
    /// Author of the change, up to 200 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

/// All environments that a farm has stored, by name; those of the settings are not among them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EnvironmentsReply {
    /// The environments, sorted by name.
    pub environments: Vec<Environment>,
}
