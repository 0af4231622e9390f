//! Checks 109, 119 and 120: reports about running actions.

use std::time::Duration;

use reapi::bytestream::ReadRequest;
use tokio::time::Instant;

use crate::{
    actions::{Stage, metadata, stage},
    check::{Check, Phase, check},
    context::Cx,
    job::Job,
    names::fresh_text,
    stop::{Judged, Stop, describe, fail, need, pass},
};

pub(crate) const CHECKS: &[Check] = &[
    check!(109, G, Practical, Execution, "a long action has updates at least every 12 s", keep_alive)
        .at(Phase::Long),
    check!(119, G, May, Execution, "the output of a running action can be read as it grows", live_output),
    check!(120, G, May, Execution, "a running action says which worker has it", partial_metadata),
];

const GAP_MAX: Duration = Duration::from_secs(12);

async fn keep_alive(cx: &Cx) -> Judged {
    let run = cx.ok(&Job::sh("sleep 14")).await?;
    let times: Vec<Duration> = run.updates.iter().map(|update| update.at).collect();
    let gap =
        times.iter().zip(times.iter().skip(1)).map(|(before, after)| after.saturating_sub(*before)).max();
    let gap = gap.unwrap_or_default();
    need!(gap < GAP_MAX, "an action of 14 s was silent for {:.1} s", gap.as_secs_f64());
    Ok(format!("at most {:.1} s apart", gap.as_secs_f64()))
}

/// Reads a stream to its end; returns its content and the time of the first bytes.
async fn tail(cx: &Cx, name: &str) -> Result<(Vec<u8>, Option<Instant>), Stop> {
    let request = ReadRequest { resource_name: name.to_owned(), ..ReadRequest::default() };
    let mut stream = match cx.client.byte_stream().read(request).await {
        Ok(stream) => stream.into_inner(),
        Err(status) => fail!("reading the stream {name} is answered with {}", describe(&status)),
    };
    let (mut content, mut first) = (Vec::new(), None);
    loop {
        match stream.message().await {
            Ok(Some(piece)) => {
                if first.is_none() && !piece.data.is_empty() {
                    first = Some(Instant::now());
                }
                content.extend(piece.data);
            }
            Ok(None) => return Ok((content, first)),
            Err(status) => fail!("the stream {name} broke off with {}", describe(&status)),
        }
    }
}

async fn live_output(cx: &Cx) -> Judged {
    let text = fresh_text();
    let script = format!("for n in 1 2 3 4 5 6; do echo {text} $n; echo error $n >&2; sleep 0.5; done");
    let mut running = cx.start(&Job::sh(&script)).await?;
    let (mut stdout, mut stderr) = (String::new(), String::new());
    while stdout.is_empty() || stderr.is_empty() {
        let Some(operation) = running.next().await? else { fail!("the stream ended early") };
        let metadata = metadata(operation)?;
        let is_done = operation.done;
        (stdout, stderr) = (metadata.stdout_stream_name, metadata.stderr_stream_name);
        need!(!is_done, "no message of a running action named the streams of its output");
    }
    let finish = async {
        let run = running.finish().await?;
        Ok::<_, Stop>((run, Instant::now()))
    };
    let ((out, first), (err, _), (run, end)) =
        futures::try_join!(tail(cx, &stdout), tail(cx, &stderr), finish)?;
    let result = run.exited(0)?;
    let (whole_out, whole_err) = (cx.stdout(result).await?, cx.stderr(result).await?);
    need!(out == whole_out.as_bytes(), "the stream had {} bytes of {}", out.len(), whole_out.len());
    need!(err == whole_err.as_bytes(), "the stream had {} bytes of {}", err.len(), whole_err.len());
    let ahead = first.map_or(Duration::ZERO, |first| end.saturating_duration_since(first));
    need!(
        ahead > Duration::from_secs(1),
        "the first output of an action of 3 s came {:.1} s before the end",
        ahead.as_secs_f64()
    );
    pass()
}

async fn partial_metadata(cx: &Cx) -> Judged {
    let run = cx.ok(&Job::sh("sleep 1.5")).await?;
    let mut is_executing = false;
    for update in &run.updates {
        if stage(&update.operation)? != Stage::Executing {
            continue;
        }
        is_executing = true;
        let partial = metadata(&update.operation)?.partial_execution_metadata;
        if partial.is_some_and(|partial| !partial.worker.is_empty() && partial.queued_timestamp.is_some()) {
            return pass();
        }
    }
    need!(is_executing, "an action of 1.5 s was never EXECUTING");
    fail!("no EXECUTING message names the worker and the time the action was queued")
}
