//! Checks 142 and 147: isolation of actions from each other.

use std::time::Duration;

use futures::future::try_join_all;
use reapi::longrunning::CancelOperationRequest;
use tokio::time::Instant;

use crate::{
    actions::Stage,
    check::{Check, check},
    context::Cx,
    job::{Inputs, Job},
    names::{Noise, fresh_text},
    stop::{Judged, Stop, need, pass},
};

pub(crate) const CHECKS: &[Check] = &[
    check!(
        142,
        H,
        Must,
        Execution,
        "an action leaves only its outputs behind, and its inputs unchanged",
        leaves_nothing
    ),
    check!(147, H, Practical, Execution, "background children do not outlive their action", children),
];

/// Number of actions that inspect the farm afterwards, enough to use each slot of a small farm.
const LOOKS: usize = 8;

async fn leaves_nothing(cx: &Cx) -> Judged {
    let text = fresh_text();
    let junk =
        format!("echo junk > {text}; echo junk > /tmp/{text} 2>/dev/null; mkdir {text}.d; echo out > out");
    let jobs: Vec<Job> = (0..LOOKS).map(|_| Job::sh(&junk).outputs(["out"])).collect();
    try_join_all(jobs.iter().map(|job| cx.ok(job))).await?;
    let look = format!("ls -A; ls -A /tmp | grep {text}; true");
    let jobs: Vec<Job> = (0..LOOKS).map(|_| Job::sh(&look)).collect();
    for found in try_join_all(jobs.iter().map(|job| cx.output(job))).await? {
        need!(found.trim().is_empty(), "an action finds files that another one left: {:?}", found.trim());
    }
    attack(cx).await?;
    pass()
}

/// Tries to change the inputs in place, then checks them in the store and in the next action.
async fn attack(cx: &Cx) -> Result<(), Stop> {
    let attacks = [
        "echo evil >> in",
        "echo evil > in",
        "chmod 777 in; echo evil > in",
        "chmod u+w in; printf evil | dd of=in conv=notrunc 2>/dev/null",
        "ln in twin; chmod 777 twin; echo evil > twin",
        "cp in copy; chmod 777 copy; echo evil > copy; mv -f copy in",
        "chmod 777 . sub sub/in; echo evil > sub/in; rm -f sub/in; echo evil > sub/in",
        "truncate -s 3 in; truncate -s 3 tool",
        "chmod 777 tool; echo evil > tool",
        "touch -t 200001010000 in; chmod 000 in",
    ];
    let text = fresh_text();
    let tool = format!("#!/bin/sh\necho {text}\n");
    let inputs =
        Inputs::default().file("in", text.clone()).file("sub/in", format!("{text} 2")).program("tool", &tool);
    let mut stored = Vec::new();
    inputs.encode(&cx.client, &mut stored);
    for script in attacks {
        // The script may succeed on a copy, or fail; both are correct.
        cx.run(&Job::sh(&format!("({script}) 2>/dev/null; true")).inputs(inputs.clone())).await?;
        for blob in &stored {
            let digest = cx.client.digest(blob);
            let found = match cx.client.read(&digest).await {
                Ok(found) => found,
                Err(status) => {
                    return Err(Stop::Fail(format!(
                        "after {script:?}, an input cannot be read: {}",
                        status.message()
                    )));
                }
            };
            need!(found == *blob, "after {script:?}, an input has changed in the store");
        }
        let look = Job::sh("cat in; echo; cat sub/in; echo; ./tool").inputs(inputs.clone());
        let found = cx.output(&look).await?;
        need!(
            found == format!("{text}\n{text} 2\n{text}\n"),
            "after {script:?}, the next action finds its inputs changed"
        );
    }
    Ok(())
}

/// Returns whether an action finds a process that sleeps for this long.
async fn alive(cx: &Cx, marker: &str) -> Result<bool, Stop> {
    let inputs = Inputs::default().file("marker", marker);
    let look = "for p in /proc/[0-9]*/cmdline; do tr '\\0' ' ' < $p 2>/dev/null | grep -qF -f marker && echo $p; done; true";
    let jobs: Vec<Job> = (0..LOOKS).map(|_| Job::sh(look).inputs(inputs.clone())).collect();
    let found = try_join_all(jobs.iter().map(|job| cx.output(job))).await?;
    Ok(found.iter().any(|text| !text.trim().is_empty()))
}

/// Returns a unique duration to sleep for.
fn marker() -> String {
    format!("8{:06}", Noise::new().below(1_000_000))
}

async fn children(cx: &Cx) -> Judged {
    let one = marker();
    let script = format!(
        "(sleep 2; echo late > late) & (trap '' TERM HUP; sleep {one}) & (setsid sleep {one} >/dev/null 2>&1 &) ; \
         (sleep 2; echo late) & echo done > out; echo done"
    );
    let begun = Instant::now();
    let run = cx.ok(&Job::sh(&script).outputs(["out", "late"])).await?;
    let took = begun.elapsed();
    need!(took < Duration::from_secs(30), "an action waits {} s for its background children", took.as_secs());
    let result = run.result()?;
    let files: Vec<&str> = result.output_files.iter().map(|file| &*file.path).collect();
    need!(files == ["out"], "with children in the background, the outputs are {files:?}");
    let output = cx.stdout(result).await?;
    need!(output == "done\n", "with children in the background, the output is {output:?}");
    need!(!alive(cx, &one).await?, "a background child outlives its action");
    let two = marker();
    let script = format!("(trap '' TERM HUP; setsid sleep {two}) & sleep {two}");
    let mut running = cx.start(&Job::sh(&script)).await?;
    let name = running.name().await?;
    running.until(Stage::Executing).await?;
    let request = CancelOperationRequest { name };
    if cx.client.operations().cancel_operation(request).await.is_ok() {
        running.finish().await?;
        need!(!alive(cx, &two).await?, "a child outlives its cancelled action");
    }
    let three = marker();
    let script = format!("(trap '' TERM HUP; setsid sleep {three}) & sleep {three}");
    cx.run(&Job::sh(&script).timeout(Duration::from_secs(1))).await?;
    need!(!alive(cx, &three).await?, "a child outlives its timed-out action");
    pass()
}
