//! Whose build events a stream has: those of a running build, or of a tool outside.

use bus::EventOwner;
use callers::{Caller, denied};
use model::{BuildKey, Group, SendingBuild, State};
use policy::access::{Need, Right, group_of_action};
use tonic::{Status, metadata::MetadataMap};

use super::super::{Core, faults, submit::GROUP_HEADER};

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
        return of_run(core, group, &sender).await;
    }
    let asked = headers.get(GROUP_HEADER).map(|value| value.to_str().unwrap_or("?"));
    if caller.is_ruled {
        return of_caller(core, caller, asked, project);
    }
    let admitted = core.config.instances.admit(project, asked, 0);
    let group = admitted.map_err(|refusal| Status::invalid_argument(refusal.to_string()))?.group;
    Ok(Owner::Known(EventOwner::Outside(group)))
}

/// The owner of events of a tool outside, in a group of its caller.
fn of_caller(core: &Core, caller: &Caller, asked: Option<&str>, project: &str) -> Result<Owner, Status> {
    let invalid = |why: String| Status::invalid_argument(why);
    let of_instance = core.config.instances.admit(project, None, 0);
    let of_instance = of_instance.map_err(|refusal| invalid(refusal.to_string()))?.group;
    let asked: Option<Group> = asked
        .map(str::parse)
        .transpose()
        .map_err(|error: model::ParseIdError| invalid(format!("header {GROUP_HEADER}: {error}")))?;
    let group = group_of_action(&caller.rights, asked.as_ref(), &of_instance);
    Ok(Owner::Known(EventOwner::Outside(group.map_err(|refused| denied(&caller.refused(refused)))?)))
}

fn parse(run: &str) -> Option<(Group, SendingBuild)> {
    let (group, sender) = run.split_once('/')?;
    Some((group.parse().ok()?, sender.parse().ok()?))
}

fn malformed(project: &str) -> Status {
    let found: String = project.chars().take(120).collect();
    Status::invalid_argument(format!("project id {found:?}: expected {OF_BUILD}GROUP/WORKER/ID/ATTEMPT"))
}

async fn of_run(core: &Core, group: Group, sender: &SendingBuild) -> Result<Owner, Status> {
    let key = BuildKey { group, id: sender.id };
    let latest = core.bus.records().latest(&key).await.map_err(faults::bus)?;
    let Some((guard, record)) = latest else { return Ok(Owner::Ended) };
    let here = record.invocation().is_some_and(|run| run.worker == sender.worker);
    if record.state() != State::InProgress || record.attempt != sender.attempt || !here {
        return Ok(Owner::Ended);
    }
    let (attempt, invocation) = (record.attempt, record.invocation_id());
    Ok(Owner::Known(EventOwner::Run { key, attempt, invocation, guard }))
}
