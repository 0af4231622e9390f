//! Checks 1–6: capabilities that an endpoint announces.

use std::time::Duration;

use model::DigestFunction;
use reapi::execution::{
    BatchReadBlobsRequest, BatchUpdateBlobsRequest, ExecuteRequest, GetCapabilitiesRequest,
    ServerCapabilities, UpdateActionResultRequest, WaitExecutionRequest,
    priority_capabilities::PriorityRange,
};
use reapi::semver::SemVer;
use tonic::{Code, Status};

use crate::{
    check::{Check, check},
    client::{self, Client},
    context::{Cx, vacuous, within},
    job::Job,
    stop::{Judged, Stop, describe, fail, need, pass},
};

pub(crate) const CHECKS: &[Check] = &[
    check!(1, A, Must, Nothing, "capabilities name exactly the services of the endpoint", serves),
    check!(2, A, Must, Nothing, "execution names a digest function", function_is_named),
    check!(3, A, Must, Nothing, "the one digest function is among the many", function_is_listed),
    check!(
        4,
        A,
        Must,
        Nothing,
        "the range of API versions is set and every call in it is implemented",
        versions
    ),
    check!(5, A, Should, Nothing, "Execute works if and only if it is announced", exec_enabled),
    check!(6, A, May, Execution, "priority ranges go up from negative values and are accepted", priorities),
];

/// Returns whether the server implements the method.
fn there<T>(answer: &Result<T, Status>) -> bool {
    answer.as_ref().err().is_none_or(|status| status.code() != Code::Unimplemented)
}

async fn agree(client: &Client, capabilities: &ServerCapabilities, which: &str) -> Result<(), Stop> {
    let request = ExecuteRequest { instance_name: client.instance.clone(), ..ExecuteRequest::default() };
    let execute = client.execution().execute(request).await;
    let claims = capabilities.execution_capabilities.is_some();
    need!(
        !claims || there(&execute),
        "{which} announces execution capabilities and does not implement Execute"
    );
    need!(claims || execute.is_err(), "{which} announces no execution capabilities and accepts Execute");
    let find = client.missing(Vec::new()).await;
    let claims = capabilities.cache_capabilities.is_some();
    need!(
        !claims || there(&find),
        "{which} announces cache capabilities and does not implement FindMissingBlobs"
    );
    need!(claims || find.is_err(), "{which} announces no cache capabilities and serves FindMissingBlobs");
    need!(
        capabilities.cache_capabilities.is_some() || capabilities.execution_capabilities.is_some(),
        "{which} announces neither a cache nor execution"
    );
    Ok(())
}

async fn serves(cx: &Cx) -> Judged {
    agree(&cx.client, &cx.capabilities, "the endpoint").await?;
    let Some(endpoint) = &cx.options.cache_endpoint else { return pass() };
    let client = cache_endpoint(cx, endpoint).await?;
    let request = GetCapabilitiesRequest { instance_name: client.instance.clone() };
    let capabilities = client.capabilities().get_capabilities(request).await?.into_inner();
    need!(capabilities.cache_capabilities.is_some(), "the cache endpoint announces no cache");
    need!(capabilities.execution_capabilities.is_none(), "the cache endpoint announces execution");
    agree(&client, &capabilities, "the cache endpoint").await?;
    pass()
}

async fn cache_endpoint(cx: &Cx, endpoint: &str) -> Result<Client, Stop> {
    match client::connect(endpoint).await {
        Ok(transport) => Ok(Client::new(transport, &cx.client.instance, DigestFunction::Sha256)),
        Err(error) => fail!("cannot reach the cache endpoint {endpoint}: {error}"),
    }
}

async fn function_is_named(cx: &Cx) -> Judged {
    let Some(execution) = cx.executing() else { return vacuous("the server announces no execution") };
    need!(execution.digest_function != 0, "execution_capabilities.digest_function is UNKNOWN");
    pass()
}

async fn function_is_listed(cx: &Cx) -> Judged {
    let Some(execution) = cx.executing() else { return vacuous("the server announces no execution") };
    let all = &execution.digest_functions;
    need!(
        all.is_empty() || all.contains(&execution.digest_function),
        "digest_functions {all:?} lacks digest_function {}",
        execution.digest_function
    );
    pass()
}

fn order(version: &SemVer) -> (i32, i32, i32) {
    (version.major, version.minor, version.patch)
}

async fn versions(cx: &Cx) -> Judged {
    let (Some(low), Some(high)) = (&cx.capabilities.low_api_version, &cx.capabilities.high_api_version)
    else {
        fail!("low_api_version or high_api_version is not set")
    };
    need!(order(low) <= order(high), "low_api_version is above high_api_version");
    need!(
        low.major == 2 && high.major >= 2,
        "the range {}.{} to {}.{} contains no version 2",
        low.major,
        low.minor,
        high.major,
        high.minor
    );
    let mut lacking = Vec::new();
    let mut call = |name: &'static str, is_there: bool| {
        if !is_there {
            lacking.push(name);
        }
    };
    let client = &cx.client;
    let (instance_name, digest) = (client.instance.clone(), client.absent());
    if cx.cache().is_some() {
        call("FindMissingBlobs", there(&client.missing(vec![digest.clone()]).await));
        let update = BatchUpdateBlobsRequest {
            instance_name: instance_name.clone(),
            ..BatchUpdateBlobsRequest::default()
        };
        call("BatchUpdateBlobs", there(&client.cas().batch_update_blobs(update).await));
        let read = BatchReadBlobsRequest {
            instance_name: instance_name.clone(),
            ..BatchReadBlobsRequest::default()
        };
        call("BatchReadBlobs", there(&client.cas().batch_read_blobs(read).await));
        call("GetTree", there(&client.tree(&digest, 0, "").await));
        call("ByteStream.Read", there(&client.read(&digest).await));
        call("ByteStream.Write", there(&client.write("", client::pieces(b"", 1)).await));
        call("GetActionResult", there(&client.action_result(&digest).await));
        let update = UpdateActionResultRequest {
            instance_name: instance_name.clone(),
            ..UpdateActionResultRequest::default()
        };
        call("UpdateActionResult", there(&client.action_cache().update_action_result(update).await));
    }
    if cx.executing().is_some() {
        let execute = ExecuteRequest { instance_name, ..ExecuteRequest::default() };
        call("Execute", there(&client.execution().execute(execute).await));
        let wait = WaitExecutionRequest { name: "no/such/operation".into() };
        call("WaitExecution", there(&client.execution().wait_execution(wait).await));
    }
    need!(lacking.is_empty(), "{} is not implemented", lacking.join(", "));
    pass()
}

async fn exec_enabled(cx: &Cx) -> Judged {
    if let Some(endpoint) = &cx.options.cache_endpoint {
        let client = cache_endpoint(cx, endpoint).await?;
        let other = Cx { client, ..cx.clone() };
        let (job, limit) = (Job::program(["/bin/true"]), Duration::from_secs(20));
        let prepared = other.prepare(&job);
        within(limit, "Execute on the cache endpoint", other.refusal_of(&prepared, &job, "Execute"))
            .await??;
    }
    let (job, limit) = (Job::program(["/bin/true"]), Duration::from_secs(40));
    let enabled = cx.executing().is_some_and(|execution| execution.exec_enabled);
    if enabled {
        let run = within(limit, "an action", cx.run(&job)).await??;
        run.exited(0)?;
    } else {
        let prepared = cx.prepare(&job);
        within(limit, "Execute", cx.refusal_of(&prepared, &job, "Execute without exec_enabled")).await??;
    }
    pass()
}

async fn priorities(cx: &Cx) -> Judged {
    let ranges = cx
        .executing()
        .and_then(|execution| execution.execution_priority_capabilities.as_ref())
        .map(|capabilities| capabilities.priorities.clone())
        .unwrap_or_default();
    need!(!ranges.is_empty(), "no priority range is announced, so Bazel refuses every priority but 0");
    for PriorityRange { min_priority: min, max_priority: max } in &ranges {
        need!(min <= max, "the range {min} to {max} is reversed");
    }
    need!(
        ranges.iter().any(|range| range.min_priority < 0),
        "no range holds negative (more urgent) priorities"
    );
    let ends = ranges.iter().flat_map(|range| [range.min_priority, range.max_priority]);
    for priority in ends {
        match cx.start(&Job::program(["/bin/true"]).priority(priority)).await?.finish().await {
            Ok(run) => {
                run.exited(0)?;
            }
            Err(Stop::Fail(why)) => fail!("priority {priority} is announced, but: {why}"),
            Err(skip) => return Err(skip),
        }
    }
    let outside = ranges.iter().map(|range| range.max_priority).max().and_then(|max| max.checked_add(1));
    if let Some(priority) = outside {
        let job = Job::program(["/bin/true"]).priority(priority);
        let answer = cx.execute(&cx.prepare(&job), &job).await;
        if let Err(status) = answer {
            need!(
                matches!(status.code(), Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange),
                "a priority outside the ranges is answered with {}",
                describe(&status)
            );
        }
    }
    pass()
}
