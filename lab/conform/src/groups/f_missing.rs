//! Checks 84–88: missing blobs and malformed actions.

use std::collections::BTreeSet;

use prost::Message as _;
use reapi::{
    execution::{Action, Command, Digest, ExecuteRequest},
    rpc,
    status::{PreconditionFailure, unpack},
};
use tonic::{Code, Status};

use crate::{
    check::{Check, check},
    context::Cx,
    job::{Inputs, Job, Prepared},
    names::{fresh, fresh_text, tail},
    stop::{Judged, Stop, fail, has_code, need, pass, refused},
};

pub(crate) const CHECKS: &[Check] = &[
    check!(84, F, Must, Execution, "errors are in the response, never in the operation", where_errors_go),
    check!(85, F, Must, Execution, "whatever blob is missing, the error is FAILED_PRECONDITION", missing),
    check!(86, F, Should, Execution, "missing blobs are named as violations", violations),
    check!(87, F, Practical, Execution, "all missing blobs are named at once", all_at_once),
    check!(88, F, Must, Execution, "malformed actions are refused", malformed),
];

const PRECONDITION: &[Code] = &[Code::FailedPrecondition];

async fn where_errors_go(cx: &Cx) -> Judged {
    let timed_out = Job::sh("sleep 20").timeout(std::time::Duration::from_millis(500));
    let jobs = [
        ("a timeout", timed_out),
        ("an absent working directory", Job::program(["/bin/true"]).within("absent")),
        ("an absent program", Job::program(["/no/such/program"])),
    ];
    for (what, job) in jobs {
        let prepared = cx.prepare(&job);
        cx.client.put_all(&prepared.all()).await?;
        let Ok(mut running) = cx.execute(&prepared, &job).await else { continue };
        loop {
            match running.next().await {
                // The call failed: that is allowed only before the first message.
                Err(status) => {
                    need!(
                        running.updates.is_empty(),
                        "after the first message, {what} ended the call with {}",
                        status.code()
                    );
                    break;
                }
                Ok(None) => break,
                Ok(Some(operation)) => {
                    if operation.done {
                        crate::actions::response(operation)?;
                    }
                    let error =
                        matches!(operation.result, Some(reapi::longrunning::operation::Result::Error(_)));
                    need!(!error, "Operation.error was set for {what}");
                }
            }
        }
    }
    pass()
}

/// An action with a unique command and files on three levels.
fn job() -> Job {
    let inputs = Inputs::default()
        .file("one", fresh_text())
        .file("sub/two", fresh_text())
        .file("sub/deep/three", fresh_text())
        .file("other/four", fresh_text());
    Job::program(["/bin/true", &fresh_text()]).inputs(inputs)
}

/// Uploads all blobs of an action except those with these digests.
async fn upload_without(cx: &Cx, prepared: &Prepared, lost: &[Digest]) -> Result<(), Stop> {
    let mut all = prepared.all();
    all.retain(|blob| !lost.contains(&cx.client.digest(blob)));
    cx.client.put_all(&all).await
}

/// Returns the digests of the input files, and of the directories below the root.
fn inputs(cx: &Cx, prepared: &Prepared) -> (Vec<Digest>, Vec<Digest>) {
    let digests = |wanted: bool| {
        let is_directory = |blob: &[u8]| {
            reapi::execution::Directory::decode(blob)
                .is_ok_and(|directory| !directory.files.is_empty() || !directory.directories.is_empty())
        };
        let blobs = prepared.blobs.iter().filter(move |blob| is_directory(blob) == wanted);
        let digests: Vec<Digest> = blobs.map(|blob| cx.client.digest(blob)).collect();
        digests.into_iter().filter(|digest| *digest != prepared.root).collect()
    };
    (digests(false), digests(true))
}

async fn missing(cx: &Cx) -> Judged {
    for what in ["the action", "the command", "the input root", "an input file", "an input directory"] {
        let job = job();
        let prepared = cx.prepare(&job);
        let (files, directories) = inputs(cx, &prepared);
        let lost = match what {
            "the action" => Some(&prepared.action),
            "the command" => Some(&prepared.command),
            "the input root" => Some(&prepared.root),
            "an input file" => files.first(),
            _ => directories.first(),
        };
        let Some(lost) = lost else { fail!("the tool made no inputs") };
        upload_without(cx, &prepared, std::slice::from_ref(lost)).await?;
        let what = format!("an action without {what}");
        let status = cx.refusal_of(&prepared, &job, &what).await?;
        has_code(Some(&status), PRECONDITION, &what)?;
    }
    pass()
}

/// Returns the violations of an error.
fn named(status: &rpc::Status) -> Vec<(String, String)> {
    (status.details.iter())
        .filter_map(|any| unpack::<PreconditionFailure>(any, "google.rpc.PreconditionFailure"))
        .flat_map(|failure| failure.violations)
        .map(|violation| (violation.r#type, violation.subject))
        .collect()
}

async fn violations(cx: &Cx) -> Judged {
    for what in ["the action", "a file"] {
        let job = job();
        let prepared = cx.prepare(&job);
        let (files, _) = inputs(cx, &prepared);
        let lost = if what == "a file" { files.first() } else { Some(&prepared.action) };
        let Some(lost) = lost else { fail!("the tool made no inputs") };
        upload_without(cx, &prepared, std::slice::from_ref(lost)).await?;
        let status = cx.refusal_of(&prepared, &job, "an action with a missing blob").await?;
        let found = named(&status);
        let expected = ("MISSING".to_owned(), format!("blobs/{}", tail(cx.client.function, lost)));
        need!(
            found == [expected.clone()],
            "with {what} missing, the violations are {found:?}, expected only {expected:?}"
        );
    }
    pass()
}

async fn all_at_once(cx: &Cx) -> Judged {
    let job = job();
    let prepared = cx.prepare(&job);
    let (lost, directories) = inputs(cx, &prepared);
    need!(lost.len() == 4 && directories.len() == 3, "the tool made other inputs");
    upload_without(cx, &prepared, &lost).await?;
    compare(cx, &prepared, &job, &lost, "four files of three directories").await?;
    // Now with a missing command as well, which does not depend on the inputs.
    let job = self::job();
    let prepared = cx.prepare(&job);
    let (mut lost, _) = inputs(cx, &prepared);
    lost.push(prepared.command.clone());
    upload_without(cx, &prepared, &lost).await?;
    compare(cx, &prepared, &job, &lost, "four files and the command").await?;
    pass()
}

async fn compare(cx: &Cx, prepared: &Prepared, job: &Job, lost: &[Digest], what: &str) -> Result<(), Stop> {
    let status = cx.refusal_of(prepared, job, "an action with missing blobs").await?;
    has_code(Some(&status), PRECONDITION, "an action with missing blobs")?;
    let found: BTreeSet<String> = named(&status).into_iter().map(|(_, subject)| subject).collect();
    let expected: BTreeSet<String> =
        lost.iter().map(|digest| format!("blobs/{}", tail(cx.client.function, digest))).collect();
    need!(
        found == expected,
        "with {what} missing, {} of {} missing blobs are named{}",
        found.intersection(&expected).count(),
        expected.len(),
        if found.is_subset(&expected) { "" } else { ", and others" }
    );
    Ok(())
}

async fn malformed(cx: &Cx) -> Judged {
    let client = &cx.client;
    let job = Job::program(["/bin/true"]);
    let prepared = cx.prepare(&job);
    client.put_all(&prepared.all()).await?;
    let garbage = [vec![0xff; 30], fresh(30)].concat();
    let garbage_digest = client.put(&garbage).await?;
    let no_arguments = Command::default().encode_to_vec();
    let Ok(good) = Action::decode(&*prepared.action_blob) else {
        unreachable!("an action that was just encoded cannot be decoded");
    };
    let with_command = |command_digest: Option<Digest>| Action { command_digest, ..good.clone() };
    let actions = [
        ("an action without a command digest", with_command(None)),
        ("an action whose command is not a Command", with_command(Some(garbage_digest.clone()))),
        ("a command without arguments", with_command(Some(client.put(&no_arguments).await?))),
        ("an action whose command has an invalid digest", {
            with_command(Some(Digest { hash: "nothing".into(), size_bytes: 7 }))
        }),
    ];
    for (what, action) in actions {
        let prepared = Prepared::of(client, &action, prepared.root.clone(), Vec::new(), Vec::new());
        client.put(&prepared.action_blob).await?;
        let status = cx.refusal_of(&prepared, &job, what).await?;
        has_code(Some(&status), &[Code::InvalidArgument], what)?;
    }
    let not_an_action = Prepared { action: garbage_digest, ..prepared };
    let what = "an action that is not an Action";
    let status = cx.refusal_of(&not_an_action, &job, what).await?;
    has_code(Some(&status), &[Code::InvalidArgument], what)?;
    let request = ExecuteRequest { instance_name: client.instance.clone(), ..ExecuteRequest::default() };
    let answer: Result<_, Status> = client.execution().execute(request).await;
    refused(answer, &[Code::InvalidArgument], "Execute without an action digest")?;
    pass()
}
