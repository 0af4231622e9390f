//! Checks 114–118, 121 and 122: reports about failed actions.

use std::time::Duration;

use futures::future::try_join_all;
use tonic::Code;

use crate::{
    actions::Run,
    check::{Check, check},
    context::Cx,
    job::{Inputs, Job},
    names::fresh_text,
    stop::{Judged, Stop, named, need, pass, refused},
};

pub(crate) const CHECKS: &[Check] = &[
    check!(
        114,
        G,
        Must,
        Execution,
        "a timed-out action is DEADLINE_EXCEEDED and returns its output",
        timed_out
    ),
    check!(115, G, Must, Execution, "the timeout covers the run only", only_the_run),
    check!(116, G, Must, Execution, "timed-out and failed actions are not cached", not_cached),
    check!(117, G, Must, Execution, "exit codes and signals are results, not errors", exit_codes),
    check!(118, G, May, Execution, "a program that cannot be started has a definite end", no_program),
    check!(121, G, Should, Execution, "a timed-out action returns readable server logs", server_logs),
    check!(122, G, May, Execution, "a timed-out action returns a message for the user", message),
];

/// Runs an action that prints something and then times out.
async fn cut_off(cx: &Cx) -> Result<Run, Stop> {
    let job = Job::sh("echo so far; echo and this >&2; sleep 30").timeout(Duration::from_secs(1));
    let run = cx.run(&job).await?;
    let (code, message) = run.status();
    need!(code == Code::DeadlineExceeded, "a timed-out action ended with {}", named(code, message));
    Ok(run)
}

async fn timed_out(cx: &Cx) -> Judged {
    let run = cut_off(cx).await?;
    let result = run.result()?;
    let (stdout, stderr) = (cx.stdout(result).await?, cx.stderr(result).await?);
    need!(stdout == "so far\n", "the standard output of a timed-out action is {stdout:?}");
    need!(stderr == "and this\n", "the standard error of a timed-out action is {stderr:?}");
    pass()
}

async fn only_the_run(cx: &Cx) -> Judged {
    let inputs = (0..200).fold(Inputs::default(), |inputs, number| {
        inputs.file(&format!("directory-{}/file-{number}", number % 10), fresh_text())
    });
    let job = Job::sh("sleep 0.3").timeout(Duration::from_secs(1)).inputs(inputs);
    let jobs: Vec<Job> = (0..16).map(|_| job.again()).collect();
    for run in try_join_all(jobs.iter().map(|job| cx.run(job))).await? {
        let (code, message) = run.status();
        need!(
            code == Code::Ok,
            "one of 16 parallel actions, each of 0.3 s with a timeout of 1 s, ended with {}",
            named(code, message)
        );
    }
    pass()
}

async fn not_cached(cx: &Cx) -> Judged {
    let run = cut_off(cx).await?;
    refused(cx.client.action_result(&run.action).await, &[Code::NotFound], "a timed-out action's result")?;
    let job = Job::sh("exit 0").within("absent");
    let run = cx.run(&job).await;
    if let Ok(run) = run
        && run.status().0 != Code::Ok
    {
        refused(cx.client.action_result(&run.action).await, &[Code::NotFound], "a failed action's result")?;
    }
    pass()
}

async fn exit_codes(cx: &Cx) -> Judged {
    for (script, code) in [
        ("exit 1", 1),
        ("exit 7", 7),
        ("exit 255", 255),
        ("kill -KILL $$", 137),
        ("kill -TERM $$", 143),
        ("kill -SEGV $$", 139),
    ] {
        let run = cx.run(&Job::sh(script)).await?;
        if let Err(Stop::Fail(reason)) = run.exited(code) {
            return Err(Stop::Fail(format!("of {script:?}: {reason}")));
        }
    }
    pass()
}

async fn no_program(cx: &Cx) -> Judged {
    let not_a_program = Inputs::default().program("tool", "\u{7f}ELF, but not really");
    let jobs = [
        ("an absent program", Job::program(["/no/such/program"])),
        ("a file that is not a program", Job::program(["./tool"]).inputs(not_a_program)),
    ];
    for (what, job) in jobs {
        let prepared = cx.prepare(&job);
        cx.client.put_all(&prepared.all()).await?;
        let definite =
            [Code::InvalidArgument, Code::FailedPrecondition, Code::NotFound, Code::PermissionDenied];
        let (code, message, exit_code) = match cx.execute(&prepared, &job).await {
            Err(status) => (status.code(), status.message().to_owned(), 1),
            Ok(running) => {
                let run = running.finish().await?;
                let exit_code = run.response.result.as_ref().map_or(1, |result| result.exit_code);
                let (code, message) = run.status();
                (code, message.to_owned(), exit_code)
            }
        };
        need!(
            code == Code::Ok || definite.contains(&code),
            "{what} ended with {}, on which clients retry",
            named(code, &message)
        );
        need!(code != Code::Ok || exit_code != 0, "{what} exited with 0");
    }
    pass()
}

async fn server_logs(cx: &Cx) -> Judged {
    let run = cut_off(cx).await?;
    let logs = &run.response.server_logs;
    need!(!logs.is_empty(), "a timed-out action returns no server log");
    for (name, log) in logs {
        need!(!name.is_empty() && !name.chars().any(char::is_control), "a server log is called {name:?}");
        let Some(digest) = &log.digest else {
            return Err(Stop::Fail(format!("the server log {name:?} has no digest")));
        };
        let content = match cx.client.read(digest).await {
            Ok(content) => content,
            Err(status) => {
                return Err(Stop::Fail(format!("the server log {name:?} cannot be read: {}", status.code())));
            }
        };
        need!(
            !log.human_readable || std::str::from_utf8(&content).is_ok(),
            "the server log {name:?} is declared human-readable but is not text"
        );
    }
    pass()
}

async fn message(cx: &Cx) -> Judged {
    let run = cut_off(cx).await?;
    need!(
        !run.response.message.is_empty() || !run.status().1.is_empty(),
        "a timed-out action returns no message"
    );
    pass()
}
