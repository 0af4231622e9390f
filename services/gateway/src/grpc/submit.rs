//! Turns an `ExecuteRequest` into an accepted execution, or into a refusal with its reason.

use std::time::Duration;

use callers::{Caller, denied};
use cas::TreeCheck;
use model::{
    Attempt, BlobDigest, BuildKey, ClientTool, CommandLimits, Execution, ExecutionId, Group, PoolName,
    Priority, SendingBuild, SharedServices, brief,
};
use policy::{
    Admitted, InstanceRefusal,
    access::group_of_action,
    actions::{
        AskedFor, InvalidNeed, KeyedAction, action_keys, asked_interactor, asked_services, limits, read_needs,
    },
    requirements::POOL_PROPERTY,
};
use reapi::{
    execution::{ActionResult, Command, ExecuteRequest, RequestMetadata},
    metadata::GROUP,
    status,
};
use telemetry::metrics::{Counter, Label, count};
use tonic::{Status, metadata::MetadataMap};

use super::{
    Core,
    accept::{Accepted, Outcome, accept_or_join},
    cached, faults,
    images::{WithImage, with_pinned_image},
    interest::{Invocation, Role},
    trace::CallTrace,
    validate::{self, CheckedAction},
};

/// Header with which the Bazel of a build names that build, so that the build is charged for its actions.
const BUILD_HEADER: &str = "x-forebay-build";
/// Maximum size of error details in the trailers of a call, in bytes; clients accept 8 KiB of trailers.
const DETAILS_MAX: usize = 4096;

/// The result of submitting a request.
pub(crate) enum Submitted {
    /// It is answered from the action cache.
    Cached(Box<ActionResult>),
    /// It is accepted, or it joined an execution that was accepted before.
    Accepted(Box<Accepted>),
    /// It is refused, with details that may not fit into the trailers of a call.
    Refused(Status),
}

/// The group and priority of a request, by the rule of its instance name. A build of this farm may always
/// use its own group.
async fn admit(
    core: &Core,
    (caller, headers): (&Caller, &MetadataMap),
    instance: &str,
    priority: i32,
    sender: Option<&SendingBuild>,
) -> Result<Admitted, Status> {
    let rules = &core.config.instances;
    let refused = |refusal: InstanceRefusal| Status::invalid_argument(refusal.to_string());
    // No group has the name `?`: a header that is not ASCII is refused like an unknown group.
    let asked = headers.get(GROUP).map(|value| value.to_str().unwrap_or("?"));
    if caller.is_ruled {
        // The access rules say which groups a caller may use, whatever its instance name.
        let of_instance = rules.admit(instance, None, priority).map_err(refused)?;
        let group = group_of_caller(caller, asked, &of_instance.group)?;
        return Ok(Admitted { group, ..of_instance });
    }
    let refusal = match rules.admit(instance, asked, priority) {
        Ok(admitted) => return Ok(admitted),
        Err(refusal) => refusal,
    };
    let group: Option<Group> = asked.and_then(|asked| asked.parse().ok());
    let (Some(group), Some(sender)) = (group, sender) else { return Err(refused(refusal)) };
    let own = rules.admit(instance, None, priority).map_err(refused)?;
    if core.senders.priority_of(&group, sender).await.map_err(faults::bus)?.is_some() {
        return Ok(Admitted { group, ..own });
    }
    Err(refused(refusal))
}

/// The group of a caller with access rules: the one that its header asks for, its only one, or that of its instance name.
pub(crate) fn group_of_caller(
    caller: &Caller,
    asked: Option<&str>,
    of_instance: &Group,
) -> Result<Group, Status> {
    let asked: Option<Group> = asked
        .map(str::parse)
        .transpose()
        .map_err(|error: model::ParseIdError| Status::invalid_argument(format!("header {GROUP}: {error}")))?;
    let group = group_of_action(&caller.rights, asked.as_ref(), of_instance);
    group.map_err(|refused| denied(&caller.refused(refused)))
}

/// The band of an execution of `group`: the priority of the build that sent it, if that is a running build of the
/// group. Every other client gets the default of builds, because a person may wait at it, and the order is strict:
/// in a lower band it would wait until no build of its group has an action left.
async fn band(core: &Core, group: &Group, sender: Option<&SendingBuild>) -> Result<Priority, Status> {
    let Some(sender) = sender else { return Ok(Priority::default()) };
    let priority = core.senders.priority_of(group, sender).await.map_err(faults::bus)?;
    Ok(priority.unwrap_or_default())
}

/// The build that sent a request, if it runs and the caller may act for it. Without access rules, any build can be named.
async fn own_sender(
    core: &Core,
    caller: &Caller,
    group: &Group,
    sender: Option<SendingBuild>,
) -> Result<Option<SendingBuild>, Status> {
    let Some(sender) = sender else { return Ok(None) };
    if !caller.is_ruled {
        return Ok(Some(sender));
    }
    let found = core.senders.priority_of(group, &sender).await.map_err(faults::bus)?;
    let Some(priority) = found else { return Ok(None) };
    let build = BuildKey { group: group.clone(), id: sender.id };
    Ok(caller.may_act_for(&build, priority).then_some(sender))
}

/// The requested platform properties, with the `pool` of the instance name added unless the action names a pool.
fn with_pool<'a>(
    platform: &'a [(String, String)],
    pool: Option<&PoolName>,
) -> std::borrow::Cow<'a, [(String, String)]> {
    match pool.filter(|_| !platform.iter().any(|(name, _)| name == POOL_PROPERTY)) {
        Some(pool) => [platform, &[(POOL_PROPERTY.to_owned(), pool.to_string())]].concat().into(),
        None => platform.into(),
    }
}

/// Submits a request: looks up the cache, validates the action, and accepts or joins an execution.
pub(crate) async fn submit(
    core: &Core,
    (caller, headers): (&Caller, &MetadataMap),
    request: &ExecuteRequest,
    action: BlobDigest,
    trace: &CallTrace,
) -> Result<Submitted, Status> {
    let instance = &request.instance_name;
    let asked = request.execution_policy.map_or(0, |policy| policy.priority);
    let sender: Option<SendingBuild> =
        headers.get(BUILD_HEADER).and_then(|value| value.to_str().ok()?.parse().ok());
    let admitted = admit(core, (caller, headers), instance, asked, sender.as_ref()).await?;
    let sender = own_sender(core, caller, &admitted.group, sender).await?;
    let core = &*core.seen_by((caller, headers), Some(&admitted.group))?;
    let found = read_action(core, &admitted.group, action).await?;
    let may_be_cached =
        !request.skip_cache_lookup && !found.as_ref().is_some_and(|it| validate::refuses_cache(&it.action));
    // An action with a cached result needs no inputs, not even the action itself.
    let digest = found.as_ref().map_or(action, |found| found.digest);
    if may_be_cached && let Some(cached) = look_up(core, instance, &digest).await? {
        return Ok(cached);
    }
    let Some(found) = found else { return Ok(refuse_missing(&[action])) };
    let checked = validate::check_action(&found.digest, &found.action, core.config.timeouts)?;
    let command = match check_inputs(core, &checked).await? {
        Ok(command) => command,
        Err(missing) => return Ok(refuse_missing(&missing)),
    };
    let found = with_platform_of(core, &admitted.group, found, &command).await?;
    if found.digest != digest
        && may_be_cached
        && let Some(cached) = look_up(core, instance, &found.digest).await?
    {
        return Ok(cached);
    }
    let WithImage { digest: action, action: message, image } = found;
    let environment: Vec<(String, String)> = validate::environment(&command);
    let platform = validate::platform(message.platform.as_ref(), &command);
    let asked = read_asked(core, &platform, &environment)?;
    let placed = with_pool(&asked.platform, admitted.pool.as_ref());
    let requirements = core.pools.admit(&placed, &asked.needs).await.inspect_err(|_| refused("no pool"))?;
    let client = client(&reapi::metadata::request_metadata(headers));
    let role = Role::Asks(Invocation::of(headers));
    let keys = action_keys(&KeyedAction {
        group: &admitted.group,
        instance,
        command: &checked.command,
        arguments: &command.arguments,
        environment: &environment,
        platform: &asked.platform,
        image: image.as_ref().map(|image| &image.manifest),
        outputs: validate::outputs(&command),
        target: &client.target,
        mnemonic: &client.mnemonic,
    });
    let band = band(core, &admitted.group, sender.as_ref()).await?;
    let now = core.bus.now();
    let execution = Execution {
        id: ExecutionId::generate(),
        group: admitted.group,
        instance: instance.clone(),
        zone: core.cas.zone().cloned(),
        caller: caller.name.clone(),
        action,
        band,
        priority: admitted.priority,
        requirements,
        timeout_ms: bus::millis(timeout(core, &checked, &asked)).max(1),
        image,
        do_not_cache: checked.do_not_cache || asked.do_not_cache,
        accepted_at_ms: now,
        expires_at_ms: now.after(core.config.queue_timeout),
        // Another attempt would find other services, or the same in another state.
        max_attempts: match asked.needs.shared_services {
            SharedServices::None => core.config.attempts.max(Attempt::FIRST),
            SharedServices::Runs | SharedServices::Uses => Attempt::FIRST,
        },
        traceparent: trace.parent(),
        client,
        build: sender,
        needs: asked.needs,
        keys,
    };
    Ok(match accept_or_join(core, execution, &role, may_be_cached).await? {
        Outcome::Accepted(accepted) => Submitted::Accepted(accepted),
        Outcome::Cached(result) => answered(result),
    })
}

/// The time limit of an action. Services that others use end with the wait for them, so they have no earlier one by default.
fn timeout(core: &Core, checked: &CheckedAction, asked: &AskedFor) -> Duration {
    match asked.needs.shared_services {
        SharedServices::Runs if !checked.has_timeout => core.config.timeouts.max,
        SharedServices::None | SharedServices::Runs | SharedServices::Uses => checked.timeout,
    }
}

/// The answer from the action cache, if there is one.
async fn look_up(core: &Core, instance: &str, action: &BlobDigest) -> Result<Option<Submitted>, Status> {
    let result = cached::look_up(core, instance, action).await?;
    Ok(result.map(|result| answered(Box::new(result))))
}

/// An answer from the action cache, which is counted.
fn answered(result: Box<ActionResult>) -> Submitted {
    count(Counter::ActionsCached, &[], 1);
    Submitted::Cached(result)
}

/// What an action asks for, within the limits of this gateway.
fn read_asked(
    core: &Core,
    platform: &[(String, String)],
    environment: &[(String, String)],
) -> Result<AskedFor, Status> {
    let invalid = |invalid: InvalidNeed| {
        refused("invalid");
        Status::invalid_argument(invalid.to_string())
    };
    let asked = read_needs(platform, environment).map_err(invalid)?;
    let services = asked_services(platform).map_err(invalid)?;
    let too_high = |message: String| {
        refused("limits");
        Status::failed_precondition(message)
    };
    limits::check(&asked.limits, &core.config.limits).map_err(|error| too_high(error.to_string()))?;
    let interactor = asked_interactor(platform).map_err(invalid)?;
    let of_interactor = interactor.iter().map(|interactor| ("interactor".to_owned(), interactor.limits));
    let of_services = services.iter().map(|service| (format!("service {}", service.name), service.limits));
    for (whose, limits) in of_services.chain(of_interactor) {
        let given = CommandLimits { common: limits, ..CommandLimits::default() };
        let checked = limits::check(&given, &core.config.limits);
        checked.map_err(|error| too_high(format!("the {whose}: {error}")))?;
    }
    Ok(asked)
}

/// The action with this digest, if it is stored, with the image that its own platform asks for.
async fn read_action(core: &Core, group: &Group, digest: BlobDigest) -> Result<Option<WithImage>, Status> {
    let content = core.cas.get(&digest).await.map_err(|error| faults::store(&error))?;
    let Some(content) = content else { return Ok(None) };
    let action = validate::decode_action(&digest, &content)?;
    let platform = validate::platform(action.platform.as_ref(), &Command::default());
    let found = with_pinned_image(core, group, (digest, action), platform).await;
    found.map(Some).inspect_err(|_| refused("image"))
}

/// The same action with the image that the platform of its command asks for: clients of 2.1 set only that.
async fn with_platform_of(
    core: &Core,
    group: &Group,
    found: WithImage,
    command: &Command,
) -> Result<WithImage, Status> {
    let is_own = found.action.platform.as_ref().is_some_and(|platform| !platform.properties.is_empty());
    if is_own {
        return Ok(found);
    }
    let platform = validate::platform(None, command);
    let found = with_pinned_image(core, group, (found.digest, found.action), platform).await;
    found.inspect_err(|_| refused("image"))
}

/// Checks the command and the input tree. Returns the command, or all missing blobs.
async fn check_inputs(
    core: &Core,
    action: &CheckedAction,
) -> Result<Result<Command, Vec<BlobDigest>>, Status> {
    let (command, tree) =
        tokio::try_join!(core.cas.get(&action.command), core.cas.check_tree(&action.input_root))
            .map_err(|error| faults::store(&error))?;
    let command = command.map(|content| validate::check_command(&action.command, &content)).transpose()?;
    let mut missing = Vec::new();
    if command.is_none() {
        missing.push(action.command);
    }
    match tree {
        TreeCheck::Complete => {}
        TreeCheck::Missing { digests, .. } => missing.extend(digests),
        TreeCheck::Faulty(fault) => {
            refused("invalid");
            return Err(Status::invalid_argument(format!("invalid input root: {fault}")));
        }
    }
    match command {
        Some(command) if missing.is_empty() => Ok(Ok(command)),
        Some(_) | None => Ok(Err(missing)),
    }
}

/// Refuses a request with missing blobs: the client uploads them and retries.
fn refuse_missing(missing: &[BlobDigest]) -> Submitted {
    refused("missing blobs");
    Submitted::Refused(status::missing(missing))
}

/// Whether the details of an error fit into the trailers of a call. If not, they are sent in a response.
pub(crate) fn fits_into_trailers(status: &Status) -> bool {
    status.details().len() <= DETAILS_MAX
}

fn refused(why: &str) {
    count(Counter::ExecutionsRefused, &[(Label::Reason, why)], 1);
}

fn client(metadata: &RequestMetadata) -> ClientTool {
    let said = |text: &str| brief(text.to_owned());
    ClientTool {
        name: said(reapi::metadata::tool_name(metadata)),
        invocation: said(&metadata.tool_invocation_id),
        mnemonic: said(&metadata.action_mnemonic),
        target: said(&metadata.target_id),
    }
}
