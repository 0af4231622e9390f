//! Checks 74, 78–82: reads and writes of the action cache.

use reapi::execution::{ActionResult, Digest, OutputDirectory, OutputFile, UpdateActionResultRequest};
use tonic::Code;

use crate::{
    check::{Check, check},
    context::Cx,
    job::Job,
    names::fresh,
    stop::{Judged, Stop, describe, fail, need, pass, refused, skip},
};

pub(crate) const CHECKS: &[Check] = &[
    check!(74, E, Must, Store, "an absent result is NOT_FOUND", absent).each_function(),
    check!(78, E, Must, Cache, "invalid results are refused", invalid).each_function(),
    check!(79, E, May, Cache, "a stored result comes back equivalent", equivalent).each_function(),
    check!(
        80,
        E,
        Must,
        Store,
        "a caller without write permission is refused, as the capabilities say",
        rights
    ),
    check!(81, E, Should, Cache, "a stored exit code is returned unchanged", exit_code).each_function(),
    check!(82, E, Must, Cache, "another salt is another entry", salt).each_function(),
];

/// Uploads a new action and returns its digest.
pub(crate) async fn action(cx: &Cx) -> Result<Digest, Stop> {
    let prepared = cx.prepare(&Job::program(["/bin/true"]));
    cx.client.put_all(&prepared.all()).await?;
    Ok(prepared.action)
}

/// Returns a result whose output file and standard output are uploaded.
pub(crate) async fn good_result(cx: &Cx) -> Result<ActionResult, Stop> {
    let output = cx.client.put(&fresh(700)).await?;
    let stdout = cx.client.put(&fresh(80)).await?;
    Ok(ActionResult {
        output_files: vec![OutputFile {
            path: "out/file".into(),
            digest: Some(output),
            is_executable: true,
            ..OutputFile::default()
        }],
        stdout_digest: Some(stdout),
        exit_code: 0,
        ..ActionResult::default()
    })
}

async fn absent(cx: &Cx) -> Judged {
    let client = &cx.client;
    refused(client.action_result(&client.absent()).await, &[Code::NotFound], "an absent result")?;
    let blob = client.put(&fresh(40)).await?;
    refused(client.action_result(&blob).await, &[Code::NotFound], "the result of a blob that is stored")?;
    pass()
}

async fn invalid(cx: &Cx) -> Judged {
    let client = &cx.client;
    let good = good_result(cx).await?;
    let file = |path: &str, digest: Option<Digest>| {
        let file = OutputFile { path: path.to_owned(), digest, ..OutputFile::default() };
        ActionResult { output_files: vec![file], ..good.clone() }
    };
    let digest = good.stdout_digest.clone();
    let bad = Digest { hash: "not-a-hash".into(), size_bytes: 3 };
    let negative = digest.clone().map(|digest| Digest { size_bytes: -4, ..digest });
    let directory =
        OutputDirectory { path: "/etc".into(), tree_digest: digest.clone(), ..OutputDirectory::default() };
    let results = [
        ("an absolute output path", file("/etc/passwd", digest.clone())),
        ("an output without digest", file("out", None)),
        ("an output with an invalid digest", file("out", Some(bad.clone()))),
        ("an output of negative size", file("out", negative)),
        (
            "a standard output with an invalid digest",
            ActionResult { stdout_digest: Some(bad), ..good.clone() },
        ),
        (
            "an absolute output directory",
            ActionResult { output_directories: vec![directory], ..good.clone() },
        ),
    ];
    for (what, result) in results {
        let action = action(cx).await?;
        refused(
            client.update_action_result(&action, result).await,
            &[Code::InvalidArgument],
            &format!("a result with {what}"),
        )?;
        refused(client.action_result(&action).await, &[Code::NotFound], "a result that was refused")?;
    }
    let request = UpdateActionResultRequest {
        instance_name: client.instance.clone(),
        action_digest: Some(action(cx).await?),
        digest_function: client.function_value(),
        ..UpdateActionResultRequest::default()
    };
    let answer = client.action_cache().update_action_result(request).await;
    refused(answer, &[Code::InvalidArgument], "an update without a result")?;
    if let Err(status) = client.update_action_result(&client.absent(), good).await {
        need!(
            status.code() == Code::FailedPrecondition,
            "a result of an absent action is answered with {}",
            describe(&status)
        );
    }
    pass()
}

async fn equivalent(cx: &Cx) -> Judged {
    let client = &cx.client;
    let (action, result) = (action(cx).await?, good_result(cx).await?);
    let answer = client.update_action_result(&action, result.clone()).await?;
    let got = client.action_result(&action).await?;
    for (what, other) in [("the answer to the update", answer), ("the stored result", got)] {
        need!(
            other.exit_code == result.exit_code
                && other.output_files.len() == 1
                && other.output_files.iter().zip(&result.output_files).all(|(a, b)| {
                    (&a.path, &a.digest, a.is_executable) == (&b.path, &b.digest, b.is_executable)
                })
                && (other.stdout_digest == result.stdout_digest || !other.stdout_raw.is_empty()),
            "{what} is another result"
        );
    }
    pass()
}

async fn rights(cx: &Cx) -> Judged {
    let client = &cx.client;
    let announced = cx
        .cache()
        .and_then(|cache| cache.action_cache_update_capabilities)
        .is_some_and(|update| update.update_enabled);
    let (action, result) = (action(cx).await?, good_result(cx).await?);
    let answer = client.update_action_result(&action, result).await;
    if !announced {
        refused(answer, &[Code::PermissionDenied], "a write without update_enabled")?;
        return pass();
    }
    if let Err(status) = answer {
        fail!("update_enabled is announced, and a write is answered with {}", describe(&status));
    }
    skip!("this caller may write, as announced; the tool has no caller without write permission")
}

async fn exit_code(cx: &Cx) -> Judged {
    let client = &cx.client;
    for code in [1, 3, 137, 255] {
        let action = action(cx).await?;
        let result = ActionResult { exit_code: code, ..good_result(cx).await? };
        client.update_action_result(&action, result).await?;
        let got = client.action_result(&action).await?.exit_code;
        need!(got == code, "a result stored with exit code {code} comes back with {got}");
    }
    pass()
}

async fn salt(cx: &Cx) -> Judged {
    let client = &cx.client;
    let job = Job::program(["/bin/true"]);
    let (one, other) = (cx.prepare(&job), cx.prepare(&job.again()));
    need!(one.action != other.action, "the tool uses the wrong salt");
    client.put_all(&one.all()).await?;
    client.put_all(&other.all()).await?;
    client.update_action_result(&one.action, good_result(cx).await?).await?;
    client.action_result(&one.action).await?;
    let answer = client.action_result(&other.action).await;
    refused(answer, &[Code::NotFound], "the result of an action with another salt")?;
    pass()
}
