//! What crosses from the account of a tenant to that of the farm, or back.

use std::fmt;

use model::Group;

use crate::{ApiCall, EventSubject, RequestSubject, Rights, Subject, stream};

/// A subject that the farm exports to the account of a tenant. Each names its group.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Crossing {
    /// Publish build requests of one group and priority.
    Request(RequestSubject),
    /// Call the API for one group.
    Api(ApiCall, Group),
    /// Read the last event on a subject of a build.
    LastEvent(Group),
    /// Watch the builds of a group.
    Live(Group),
    /// Learn which build requests of a group were refused.
    Rejected(Group),
}

impl Crossing {
    /// The group that it belongs to.
    pub fn group(&self) -> &Group {
        match self {
            Self::Request(request) => &request.group,
            Self::Api(_, group) | Self::LastEvent(group) | Self::Live(group) | Self::Rejected(group) => group,
        }
    }

    /// Whether the farm sends messages to the tenant, instead of the tenant requests to the farm.
    pub fn is_to_the_tenant(&self) -> bool {
        match self {
            Self::Live(_) | Self::Rejected(_) => true,
            Self::Request(_) | Self::Api(..) | Self::LastEvent(_) => false,
        }
    }

    /// Whether an answer of the farm may have several messages.
    pub fn has_answers_of_several(&self) -> bool {
        matches!(self, Self::Api(ApiCall::Events, _))
    }

    /// The same for all groups: what the farm exports, where each account proves by a token which part of it may be imported.
    pub fn of_all_groups(&self) -> String {
        match self {
            Self::Request(request) => RequestSubject::filter(request.priority),
            Self::Api(call, _) => format!("forebay.api.{}.*", call.as_str()),
            Self::LastEvent(_) => format!("$JS.API.DIRECT.GET.{}.forebay.build.event.*.>", stream::EVENTS),
            Self::Live(_) => "forebay.build.live.*.>".to_owned(),
            Self::Rejected(_) => "forebay.build.rejected.*".to_owned(),
        }
    }

    /// Adds to `rights` what a user of the tenant needs for it.
    pub fn allow(&self, rights: &mut Rights) {
        if self.is_to_the_tenant() {
            rights.subscribe_to(self.to_string());
        } else {
            rights.publish_to(self.to_string());
        }
    }
}

impl fmt::Display for Crossing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request(request) => request.fmt(f),
            Self::Api(call, group) => Subject::Api(*call, group.clone()).fmt(f),
            Self::LastEvent(group) => {
                write!(f, "$JS.API.DIRECT.GET.{}.forebay.build.event.{group}.>", stream::EVENTS)
            }
            Self::Live(group) => write!(f, "forebay.build.live.{group}.>"),
            Self::Rejected(group) => Subject::Rejected(group.clone()).fmt(f),
        }
    }
}

/// The request for the last event on `subject`, from any replica.
pub(crate) fn last_event(subject: &EventSubject) -> String {
    format!("$JS.API.DIRECT.GET.{}.{subject}", stream::EVENTS)
}
