//! Whose build events a stream has: those of a running build, or of a tool outside.

use bus::EventOwner;
use callers::{Caller, denied};
use model::{BuildKey, Group, SendingBuild, State};
use policy::access::{Need, Right};
use reapi::metadata::GROUP;
use tonic::{Status, metadata::MetadataMap};

use super::super::{Core, faults, submit::group_of_caller};

/// The prefix of the project id that the Bazel of a build states, before `GROUP/WORKER/ID/ATTEMPT`: Bazel has no header
/// for build events before version 5.
const OF_BUILD: &str = "forebay/";

/// Whose events a stream has, if they are stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Owner {
    /// Its events are stored.
    Known(EventOwner),
    /// An attempt of a build that has ended, or that another worker took over: nothing of it is stored any more.
    Ended,
}

/// The owner of a stream whose requests have these headers and this project id.
pub(super) async fn owner(
    core: &Core,
    (caller, headers): (&Caller, &MetadataMap),
    project: &str,
) -> Result<Owner, Status> {
    if let Some(run) = project.strip_prefix(OF_BUILD) {
        let (group, sender) = parse(run).ok_or_else(|| malformed(project))?;
        let checked = caller.rights.check(Need::In(Right::Execute, &group));
        checked.map_err(|refused| denied(&caller.refused(refused)))?;
        return of_run(core, caller, group, &sender).await;
    }
    let asked = headers.get(GROUP).map(|value| value.to_str().unwrap_or("?"));
    let instances = &core.config.instances;
    let admitted = instances.admit(project, asked.filter(|_| !caller.is_ruled), 0);
    let mut group = admitted.map_err(|refusal| Status::invalid_argument(refusal.to_string()))?.group;
    if caller.is_ruled {
        group = group_of_caller(caller, asked, &group)?;
    }
    Ok(Owner::Known(EventOwner::Outside(group)))
}

fn parse(run: &str) -> Option<(Group, SendingBuild)> {
    let (group, sender) = run.split_once('/')?;
    Some((group.parse().ok()?, sender.parse().ok()?))
}

fn malformed(project: &str) -> Status {
    let found: String = project.chars().take(120).collect();
    Status::invalid_argument(format!("project id {found:?}: expected {OF_BUILD}GROUP/WORKER/ID/ATTEMPT"))
}

async fn of_run(core: &Core, caller: &Caller, group: Group, sender: &SendingBuild) -> Result<Owner, Status> {
    let key = BuildKey { group, id: sender.id };
    let latest = core.bus.records().latest(&key).await.map_err(faults::bus)?;
    let Some((guard, record)) = latest else { return Ok(Owner::Ended) };
    let here = record.invocation().is_some_and(|run| run.worker == sender.worker);
    if record.state() != State::InProgress || record.attempt != sender.attempt || !here {
        return Ok(Owner::Ended);
    }
    if !caller.may_act_for(&key, record.build.priority) {
        return Err(Status::permission_denied(format!("build {key}: use the token of the build")));
    }
    let (attempt, invocation) = (record.attempt, record.invocation_id());
    Ok(Owner::Known(EventOwner::Run { key, attempt, invocation, guard }))
}
