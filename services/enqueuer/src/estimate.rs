//! Estimates a build's occupancy (section 4.3 of the paper) and run time before it runs, and checks whether its group
//! may run builds at all.

use std::{collections::BTreeMap, sync::Arc};

use model::{Accepted, Build, EstimateError, Esu, ExecutorType, Group, RequestLimits};
use policy::executor_types;
use service::Current;
use settings::{EnqueuerSettings, GroupsWithoutQuota};
use tokio::sync::watch;

use crate::{expected::Expected, models::Models};

/// Estimates builds. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Estimator(Arc<Inner>);

struct Inner {
    limits: RequestLimits,
    signs: BTreeMap<ExecutorType, Vec<String>>,
    /// Whether builds of groups without quota are refused.
    refuses: bool,
    governance: watch::Receiver<Current>,
    models: Models,
    expected: Expected,
}

/// Minimum estimate: a build that consists of cache hits only, or claims to, still counts; otherwise any number of
/// such builds would start at once.
const LEAST: Esu = Esu::from_micros(20_000);

/// A group without quota on a farm that refuses such groups.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "group {group} has no quota, and this farm refuses builds without one: set it with `forebay quota set`"
)]
pub(crate) struct NoQuota {
    group: Group,
}

impl Estimator {
    /// Creates an estimator that assumes 1 ESU of each executor type while there is no model.
    pub(crate) fn new(
        settings: &EnqueuerSettings,
        governance: watch::Receiver<Current>,
        models: Models,
        expected: Expected,
    ) -> Self {
        Self(Arc::new(Inner {
            limits: settings.request_limits.clone(),
            signs: settings.executor_types.clone(),
            refuses: settings.groups_without_quota == GroupsWithoutQuota::Refuse,
            governance,
            models,
            expected,
        }))
    }

    /// Limits that requests are checked against.
    pub(crate) fn limits(&self) -> &RequestLimits {
        &self.0.limits
    }

    /// Refuses a group without quota if the settings require one; not while the quotas are unknown or none is set.
    pub(crate) fn check_quota(&self, group: &Group) -> Result<(), NoQuota> {
        let known = self.0.governance.borrow();
        let missing =
            known.as_ref().is_some_and(|known| !known.quotas.is_empty() && known.quotas.of(group).is_none());
        if self.0.refuses && missing { Err(NoQuota { group: group.clone() }) } else { Ok(()) }
    }

    /// Adds to the build what is known of its tool, its executor types, its expected occupancy of each, its expected run
    /// time, and whether it is expected to run actions. `version_file` is the content of its file
    /// `.bazelversion`, if it is known.
    pub(crate) fn estimate(&self, accepted: Accepted, version_file: Option<&str>) -> Build {
        let Accepted { mut build, executor_types: named, job: _ } = accepted;
        build.tool_hints = self.0.expected.tool_hints(&build, version_file);
        let model = self.0.models.current();
        let call = build.tool_call().into_owned();
        let nothing = BTreeMap::new();
        let by_rule = model.as_ref().map_or(&nothing, |model| &model.types_by_rule);
        for kind in executor_types(&named, &call, &self.0.signs, by_rule) {
            if let Some(requested) = build.occupancy.0.get_mut(&kind) {
                *requested = LEAST.max(*requested);
                continue;
            }
            let predicted = model.as_ref().and_then(|model| model.predict(&build, &call, &kind));
            if predicted.is_some() {
                build.estimated_by = model.as_ref().map(|model| model.version());
            }
            build.occupancy.0.insert(kind, predicted.map_or(Esu::ONE, |amount| amount.max(LEAST)));
        }
        build.expected_ms = self.0.expected.of(&build);
        build.sends_actions = self.0.expected.sends_actions(&build);
        build
    }

    /// Accuracy of the latest estimates of occupancy by executor type.
    pub(crate) fn occupancy_error(&self) -> BTreeMap<ExecutorType, EstimateError> {
        self.0.expected.occupancy_error()
    }
}
