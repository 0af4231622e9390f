//! Checks 106–108, 110 and 113: waiting for operations, and clients that disconnect and reconnect.

use std::time::Duration;

use futures::future::try_join_all;
use tonic::Code;

use crate::{
    actions::{Run, response},
    check::{Check, Phase, check},
    context::{Cx, within},
    job::Job,
    names::fresh_text,
    stop::{Judged, Stop, describe, fail, need, pass, skip},
};

pub(crate) const CHECKS: &[Check] = &[
    check!(106, G, Must, Execution, "WaitExecution answers at once and stays to the end", wait),
    check!(107, G, Must, Execution, "WaitExecution of an unknown operation is NOT_FOUND", unknown),
    check!(108, G, Practical, Execution, "a completed operation can be waited for later", later)
        .at(Phase::Last),
    check!(110, G, Must, Execution, "a client that disconnects does not affect the others", leaving),
    check!(113, G, May, Execution, "an operation has one result for all clients", one_result),
];

const PRINTS: &str = "sleep 1.5; cat /proc/sys/kernel/random/uuid";

async fn printed(cx: &Cx, run: &Run) -> Result<String, Stop> {
    cx.stdout(run.exited(0)?).await
}

async fn wait(cx: &Cx) -> Judged {
    let mut running = cx.start(&Job::sh(PRINTS)).await?;
    let name = running.name().await?;
    let waiters = (0..3).map(|_| async {
        let mut waiter = cx.wait(&name).await?;
        within(Duration::from_secs(3), "WaitExecution of a live operation", waiter.name()).await??;
        waiter.finish().await
    });
    let (all, run) = futures::try_join!(try_join_all(waiters), running.finish())?;
    let expected = printed(cx, &run).await?;
    for waiter in all {
        need!(waiter.name == name, "WaitExecution of {name} returns {}", waiter.name);
        need!(printed(cx, &waiter).await? == expected, "WaitExecution returns another result");
    }
    pass()
}

async fn unknown(cx: &Cx) -> Judged {
    let mut running = cx.start(&Job::program(["/bin/true"])).await?;
    let name = running.name().await?;
    running.finish().await?;
    // Change the last character only, so that the name stays well-formed.
    let last = name.chars().next_back().unwrap_or('0');
    let other = if last == '0' { '1' } else { '0' };
    let changed = format!("{}{other}", name.strip_suffix(last).unwrap_or_default());
    let instance = &cx.client.instance;
    let prefix = if instance.is_empty() { String::new() } else { format!("{instance}/") };
    let invented = format!("{prefix}operations/{}", fresh_text());
    for name in [changed, invented, fresh_text()] {
        let answer = within(Duration::from_secs(5), &format!("WaitExecution of {name}"), async {
            let mut running = cx.wait(&name).await?;
            running.next().await.map(|first| first.is_some())
        })
        .await?;
        match answer {
            Ok(_) => fail!("WaitExecution of the unknown operation {name} is answered"),
            Err(status) => need!(
                status.code() == Code::NotFound,
                "WaitExecution of the unknown operation {name} is answered with {}",
                describe(&status)
            ),
        }
    }
    pass()
}

async fn later(cx: &Cx) -> Judged {
    let Some(name) = &cx.early.operation else { skip!("no action could be run at the start") };
    let run = match cx.wait(name).await {
        Ok(running) => running.finish().await?,
        Err(status) => fail!(
            "WaitExecution is answered with {}, {} s after the operation was done",
            describe(&status),
            cx.begun.elapsed().as_secs()
        ),
    };
    run.exited(0)?;
    Ok(format!("over the {} s of this run", cx.begun.elapsed().as_secs()))
}

async fn leaving(cx: &Cx) -> Judged {
    let mut running = cx.start(&Job::sh(PRINTS)).await?;
    let name = running.name().await?;
    let mut waiter = cx.wait(&name).await?;
    waiter.name().await?;
    drop(running);
    let run = waiter.finish().await?;
    need!(!printed(cx, &run).await?.is_empty(), "after another client disconnected, the output is empty");
    // No client is connected for a moment, as when a client reconnects.
    let mut running = cx.start(&Job::sh(PRINTS)).await?;
    let name = running.name().await?;
    drop(running);
    tokio::time::sleep(Duration::from_millis(300)).await;
    let run = cx.wait(&name).await?.finish().await?;
    need!(!printed(cx, &run).await?.is_empty(), "after the client reconnected, the output is empty");
    pass()
}

async fn one_result(cx: &Cx) -> Judged {
    let mut running = cx.start(&Job::sh(PRINTS)).await?;
    let name = running.name().await?;
    let waiter = async { cx.wait(&name).await?.finish().await };
    let (run, beside) = futures::try_join!(running.finish(), waiter)?;
    let late = cx.wait(&name).await?.finish().await?;
    let expected = printed(cx, &run).await?;
    for other in [beside, late] {
        need!(printed(cx, &other).await? == expected, "one operation has two results");
        let done = other.updates.iter().filter(|update| update.operation.done).count();
        need!(done == 1, "a stream has {done} messages with done set");
        if let Some(update) = other.updates.last() {
            need!(response(&update.operation)?.result == other.response.result, "a stream has two results");
        }
    }
    pass()
}
