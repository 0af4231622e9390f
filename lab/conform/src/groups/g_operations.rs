//! Checks 103–105, 111 and 112: operations and their event streams.

use std::time::Duration;

use reapi::longrunning::{CancelOperationRequest, GetOperationRequest, Operation};
use tonic::{Code, Status};

use crate::{
    actions::{Stage, metadata, response, stage},
    check::{Check, check},
    context::{Cx, within},
    job::Job,
    stop::{Judged, describe, fail, named, need, pass},
};

pub(crate) const CHECKS: &[Check] = &[
    check!(
        103,
        G,
        Must,
        Execution,
        "the first message is prompt, and names the operation and its action",
        first_message
    ),
    check!(
        104,
        G,
        Must,
        Execution,
        "done, COMPLETED and a response come together, last and once",
        completion
    ),
    check!(105, G, May, Execution, "stages come in an order that makes sense", stages),
    check!(111, G, May, Execution, "a cancelled operation ends as CANCELLED", cancel),
    check!(112, G, May, Execution, "GetOperation returns live and completed operations", get_operation),
];

async fn first_message(cx: &Cx) -> Judged {
    let mut running = cx.start(&Job::sh("sleep 0.3")).await?;
    let name = within(Duration::from_secs(3), "an Execute", running.name()).await??;
    need!(!name.is_empty(), "the operation has no name");
    let action = running.action.clone();
    let run = running.finish().await?;
    for update in &run.updates {
        need!(update.operation.name == name, "the name changed from {name} to {}", update.operation.name);
        let metadata = metadata(&update.operation)?;
        need!(metadata.stage() != Stage::Unknown, "a message has the stage UNKNOWN");
        need!(metadata.action_digest.as_ref() == Some(&action), "a message names another action");
    }
    run.exited(0)?;
    pass()
}

async fn completion(cx: &Cx) -> Judged {
    for job in
        [Job::sh("sleep 0.2"), Job::sh("exit 5"), Job::sh("sleep 9").timeout(Duration::from_millis(500))]
    {
        let run = cx.run(&job).await?;
        let last = run.updates.len();
        for (number, update) in run.updates.iter().enumerate() {
            let operation = &update.operation;
            let is_last = number + 1 == last;
            need!(
                operation.done == is_last,
                "message {} of {last} has done = {}",
                number + 1,
                operation.done
            );
            need!(
                (stage(operation)? == Stage::Completed) == is_last,
                "message {} of {last} has the stage {}",
                number + 1,
                stage(operation)?.as_str_name()
            );
            need!(operation.result.is_some() == is_last, "message {} of {last} has a result", number + 1);
        }
    }
    pass()
}

async fn stages(cx: &Cx) -> Judged {
    let run = cx.ok(&Job::sh("sleep 1")).await?;
    let mut seen = Vec::new();
    for update in &run.updates {
        seen.push(stage(&update.operation)?);
    }
    for (before, after) in seen.iter().zip(seen.iter().skip(1)) {
        let is_lost_executor = *before == Stage::Executing && *after == Stage::Queued;
        need!(
            before <= after || is_lost_executor,
            "{} came after {}",
            after.as_str_name(),
            before.as_str_name()
        );
    }
    need!(seen.contains(&Stage::Executing), "an action of a second was never EXECUTING: {seen:?}");
    pass()
}

async fn cancel(cx: &Cx) -> Judged {
    let mut running = cx.start(&Job::sh("sleep 25")).await?;
    let name = running.name().await?;
    running.until(Stage::Executing).await?;
    let request = CancelOperationRequest { name: name.clone() };
    if let Err(status) = cx.client.operations().cancel_operation(request).await {
        fail!("CancelOperation is answered with {}", describe(&status));
    }
    let limit = Duration::from_secs(10);
    let run = within(limit, "after CancelOperation the stream", running.finish()).await??;
    let (code, message) = run.status();
    need!(code == Code::Cancelled, "a cancelled operation ended with {}", named(code, message));
    let answer = cx.client.action_result(&run.action).await;
    need!(answer.is_err(), "a cancelled action is in the action cache");
    let request = CancelOperationRequest { name };
    // Cancelling a finished operation may be an error, but must not hang.
    let _ = within(
        limit,
        "CancelOperation of a done operation",
        cx.client.operations().cancel_operation(request),
    )
    .await?;
    pass()
}

async fn get(cx: &Cx, name: &str) -> Result<Operation, Status> {
    let request = GetOperationRequest { name: name.to_owned() };
    Ok(cx.client.operations().get_operation(request).await?.into_inner())
}

async fn get_operation(cx: &Cx) -> Judged {
    let mut running = cx.start(&Job::sh("sleep 1.5; echo done")).await?;
    let name = running.name().await?;
    let live = match get(cx, &name).await {
        Ok(live) => live,
        Err(status) => fail!("GetOperation of a live operation is answered with {}", describe(&status)),
    };
    need!(live.name == name, "GetOperation of {name} returns {}", live.name);
    need!(!live.done, "GetOperation of a live operation says it is done");
    need!(
        metadata(&live)?.action_digest == Some(running.action.clone()),
        "GetOperation names another action"
    );
    let run = running.finish().await?;
    let done = match get(cx, &name).await {
        Ok(done) => done,
        Err(status) => fail!("GetOperation of a done operation is answered with {}", describe(&status)),
    };
    need!(done.done, "GetOperation of a done operation says it is not");
    let (one, other) = (response(&done)?, run.response);
    need!(
        one.result.map(|result| (result.exit_code, result.stdout_digest))
            == other.result.map(|result| (result.exit_code, result.stdout_digest)),
        "GetOperation returns another result than the stream"
    );
    pass()
}
