//! Runs the checks against a server.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use model::DigestFunction;
use reapi::execution::{GetCapabilitiesRequest, ServerCapabilities};
use tokio::{sync::Semaphore, task::JoinSet};

use crate::{
    check::{Check, Needs, Phase},
    client::{self, Client},
    context::{Cx, Early},
    digest_functions::functions,
    job::Job,
    names,
    options::Options,
    report::{CheckResult, Report, Verdict},
    statements,
    stop::{Judged, Stop, describe},
};

/// Reason why the server could not be checked at all.
#[derive(Debug, thiserror::Error)]
pub enum ConformError {
    /// The connection to the server failed.
    #[error("cannot connect to {endpoint}; check that the server is up and serves gRPC without TLS")]
    Connect { endpoint: String, source: tonic::transport::Error },
    /// The server did not return its capabilities.
    #[error(
        "{endpoint} did not return its capabilities for instance {instance:?} ({reason}); check the instance name"
    )]
    Capabilities {
        endpoint: String,
        instance: String,
        /// Answer of the server.
        reason: String,
    },
}

/// Runs the checks and passes each result to `on_result` when it is ready.
pub async fn run(options: Options, mut on_result: impl FnMut(&CheckResult)) -> Result<Report, ConformError> {
    let begun = Instant::now();
    let cx = prepare(options).await?;
    let options = Arc::clone(&cx.options);
    let chosen: Vec<Check> = statements::checks()
        .into_iter()
        .filter(|check| options.only.is_empty() || options.only.contains(&check.id))
        .collect();
    let mut results = Vec::new();
    let mut record = |result: CheckResult| {
        on_result(&result);
        results.push(result);
    };
    let bound = Arc::new(Semaphore::new(options.jobs.max(1)));
    let checks_of = |phase| chosen.iter().copied().filter(move |check| check.phase == phase);
    let mut long = JoinSet::new();
    for check in checks_of(Phase::Long) {
        long.spawn(guarded(check, cx.clone(), None));
    }
    let mut usual = JoinSet::new();
    for check in checks_of(Phase::Usual) {
        usual.spawn(guarded(check, cx.clone(), Some(Arc::clone(&bound))));
    }
    while let Some(result) = usual.join_next().await {
        let Ok(result) = result else {
            unreachable!("a check ended without a verdict");
        };
        record(result);
    }
    for check in checks_of(Phase::Alone) {
        record(guarded(check, cx.clone(), None).await);
    }
    while let Some(result) = long.join_next().await {
        let Ok(result) = result else {
            unreachable!("a check ended without a verdict");
        };
        record(result);
    }
    for check in checks_of(Phase::Last) {
        record(guarded(check, cx.clone(), None).await);
    }
    let millis = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    Ok(Report::new(&options.endpoint, &options.instance, millis, results))
}

async fn prepare(options: Options) -> Result<Cx, ConformError> {
    let connect = client::connect(&options.endpoint).await;
    let transport =
        connect.map_err(|source| ConformError::Connect { endpoint: options.endpoint.clone(), source })?;
    let client = Client::new(transport, &options.instance, DigestFunction::Sha256);
    let request = GetCapabilitiesRequest { instance_name: options.instance.clone() };
    let answer = client.capabilities().get_capabilities(request).await;
    let capabilities = answer
        .map_err(|status| ConformError::Capabilities {
            endpoint: options.endpoint.clone(),
            instance: options.instance.clone(),
            reason: describe(&status),
        })?
        .into_inner();
    let function = functions(&capabilities).first().copied().unwrap_or_default();
    let mut cx = Cx {
        options: Arc::new(options),
        capabilities: Arc::new(capabilities),
        early: Arc::default(),
        client: client.of_function(function),
        begun: tokio::time::Instant::now(),
    };
    cx.early = Arc::new(early(&cx).await);
    Ok(cx)
}

/// Leaves state on the server to be checked at the end.
async fn early(cx: &Cx) -> Early {
    let wanted = |id| cx.options.only.is_empty() || cx.options.only.contains(&id);
    let mut early = Early::default();
    if wanted(47) && cx.cache().is_some() {
        for size in [100, 10_000, 1_000_000] {
            if let Ok(digest) = cx.client.put(&names::fresh(size)).await
                && cx.client.has(&digest).await.unwrap_or(false)
            {
                early.blobs.push(digest);
            }
        }
    }
    if wanted(108) && executes(&cx.capabilities) {
        let run = tokio::time::timeout(Duration::from_secs(20), cx.run(&Job::random())).await;
        early.operation = run.ok().and_then(Result::ok).map(|run| run.name);
    }
    early
}

fn executes(capabilities: &ServerCapabilities) -> bool {
    capabilities.execution_capabilities.as_ref().is_some_and(|execution| execution.exec_enabled)
}

/// Runs one check; even a panic yields a result.
async fn guarded(check: Check, cx: Cx, bound: Option<Arc<Semaphore>>) -> CheckResult {
    let permit = match bound {
        Some(bound) => bound.acquire_owned().await.ok(),
        None => None,
    };
    let begun = Instant::now();
    let judged = match unmet(check.needs, &cx.capabilities) {
        Some(reason) => Err(Stop::Skip(reason.to_owned())),
        None => match tokio::spawn(judge(check, cx)).await {
            Ok(judged) => judged,
            Err(error) => Err(Stop::Fail(format!("the check itself failed: {error}"))),
        },
    };
    drop(permit);
    let (result, reason) = match judged {
        Ok(remark) => (Verdict::Pass, remark),
        Err(Stop::Fail(reason)) => (Verdict::Fail, reason),
        Err(Stop::Skip(reason)) => (Verdict::Skip, reason),
    };
    CheckResult {
        id: check.id,
        title: check.title.to_owned(),
        group: check.group,
        level: check.level,
        result,
        reason,
        millis: u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX),
    }
}

fn unmet(needs: Needs, capabilities: &ServerCapabilities) -> Option<&'static str> {
    let cache = capabilities.cache_capabilities.as_ref();
    let writable = cache.is_some_and(|cache| {
        cache.action_cache_update_capabilities.as_ref().is_some_and(|update| update.update_enabled)
    });
    match needs {
        Needs::Nothing => None,
        Needs::Store => cache.is_none().then_some("the server announces no cache"),
        Needs::Cache => (!writable).then_some("the server announces no writable action cache"),
        Needs::Execution => (!executes(capabilities)).then_some("the server announces no execution"),
    }
}

async fn judge(check: Check, cx: Cx) -> Judged {
    let functions = if check.each_function { functions(&cx.capabilities) } else { Vec::new() };
    if functions.len() < 2 {
        return limited(check, &cx).await;
    }
    let mut remark = String::new();
    for function in functions {
        let cx = Cx { client: cx.client.of_function(function), ..cx.clone() };
        match limited(check, &cx).await {
            Ok(found) => remark = found,
            Err(Stop::Fail(reason)) => return Err(Stop::Fail(format!("with {function}: {reason}"))),
            Err(Stop::Skip(reason)) => return Err(Stop::Skip(reason)),
        }
    }
    Ok(remark)
}

async fn limited(check: Check, cx: &Cx) -> Judged {
    let limit = cx.options.time_limit;
    match tokio::time::timeout(limit, (check.run)(cx)).await {
        Ok(judged) => judged,
        Err(_) => Err(Stop::Fail(format!("no answer within {} s", limit.as_secs()))),
    }
}
