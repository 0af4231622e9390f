//! What the handlers of pages work with.

use std::{pin::Pin, sync::Arc};

use callers::{Caller, Callers};
use client::Client;
use http_api::{Api, Failure, PathParameters, QueryParameters};
use model::{Group, Millis};
use policy::access::Rights;
use settings::PageSettings;

use crate::{hub::Hub, view::View};

/// State shared by all pages. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Site {
    pub(crate) api: Api,
    pub(crate) settings: Arc<PageSettings>,
    pub(crate) hub: Arc<Hub>,
    pub(crate) callers: Callers,
}

impl Site {
    pub(crate) fn new(api: &Api, settings: &PageSettings, callers: &Callers) -> Self {
        let (settings, callers) = (Arc::new(settings.clone()), callers.clone());
        Self { api: api.clone(), settings, hub: Arc::default(), callers }
    }

    /// The same, with the store as a reader sees it.
    pub(crate) fn seen_by(&self, caller: &Caller) -> Result<Self, Failure> {
        Ok(Self { api: self.api.seen_by(caller)?, ..self.clone() })
    }

    pub(crate) fn client(&self) -> &Client {
        &self.api.client
    }

    /// Whether the zone of a group is that of the reader.
    pub(crate) fn has_zone_of(&self, group: &Group) -> bool {
        self.api.is_in_zone(group)
    }

    /// The time by the farm's clock.
    pub(crate) fn now(&self) -> Millis {
        self.api.client.bus().now()
    }
}

/// What a page was asked for. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) names: Arc<PathParameters>,
    /// Without the parameters that have no value: forms send all fields.
    pub(crate) query: Arc<QueryParameters>,
    /// Address of this server, as the browser knows it: `http://HOST:PORT`.
    pub(crate) origin: Option<String>,
    /// Name that the reader gave as the submitter of their builds.
    pub(crate) me: Option<String>,
    pub(crate) scope: Scope,
    /// What the reader may see.
    pub(crate) rights: Arc<Rights>,
}

/// The parts of a page that are needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// The page with everything on it.
    Page,
    /// The parts that change.
    Live,
    /// Of these, what changes with the output of a build: it comes far more often than other events.
    Output,
}

pub(crate) type Viewing = Pin<Box<dyn Future<Output = Result<View, Failure>> + Send>>;
/// Makes the view of a page.
pub(crate) type MakeView = Arc<dyn Fn(Site, Asked) -> Viewing + Send + Sync>;

/// Name of the cookie with the reader's name.
pub(crate) const ME: &str = "forebay_submitter";
