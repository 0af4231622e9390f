//! Checks 89–94: timeouts, properties, refusals.

#![expect(deprecated, reason = "clients of older versions use these fields")]

use std::time::Duration;

use futures::future::join_all;
use prost::Message as _;
use reapi::execution::{Action, Command, Platform, platform::Property};
use tonic::Code;

use crate::{
    actions::Running,
    check::{Check, check},
    context::{Cx, noted, within},
    job::{Job, Prepared, platform},
    stop::{Judged, Stop, code_name, describe, has_code, named, need, pass},
};

pub(crate) const CHECKS: &[Check] = &[
    check!(89, F, Must, Execution, "a timeout that is too long or negative is refused", timeouts),
    check!(90, F, Should, Execution, "an action without a timeout gets the server's default", no_timeout),
    check!(91, F, Should, Execution, "an unknown platform property is refused by name", unknown_property),
    check!(
        92,
        F,
        Should,
        Execution,
        "the action's platform takes precedence over the command's",
        preferred_platform
    ),
    check!(93, F, May, Execution, "repeated properties are answered at once", repeated_properties),
    check!(94, F, Must, Execution, "refusals during a burst are RESOURCE_EXHAUSTED or UNAVAILABLE", burst),
];

const NO_SUCH_PROPERTY: &str = "conform-no-such-property";
const PROMPT: Duration = Duration::from_secs(8);

async fn timeouts(cx: &Cx) -> Judged {
    let year = Job::program(["/bin/true"]).timeout(Duration::from_secs(365 * 24 * 3600));
    let what = "an action with a timeout of a year";
    let status = within(PROMPT, what, cx.refusal(&year, what)).await??;
    has_code(Some(&status), &[Code::InvalidArgument], what)?;
    need!(
        status.message.chars().any(|c| c.is_ascii_digit()),
        "the refusal of a long timeout does not name the maximum: {}",
        status.message
    );
    let job = Job::program(["/bin/true"]);
    let prepared = cx.prepare(&job);
    let Ok(mut action) = Action::decode(&*prepared.action_blob) else {
        unreachable!("an action that was just encoded cannot be decoded");
    };
    action.timeout = Some(reapi::protobuf::Duration { seconds: -5, nanos: 0 });
    let (root, command, blobs) = (prepared.root, prepared.command_blob, prepared.blobs);
    let prepared = Prepared::of(&cx.client, &action, root, command, blobs);
    cx.client.put_all(&prepared.all()).await?;
    let what = "an action with a negative timeout";
    let status = within(PROMPT, what, cx.refusal_of(&prepared, &job, what)).await??;
    has_code(Some(&status), &[Code::InvalidArgument], what)?;
    pass()
}

async fn no_timeout(cx: &Cx) -> Judged {
    cx.ok(&Job::sh("sleep 1")).await?;
    pass()
}

async fn refused_property(cx: &Cx, prepared: &Prepared, job: &Job, what: &str) -> Result<(), Stop> {
    let status = within(PROMPT, what, cx.refusal_of(prepared, job, what)).await??;
    has_code(Some(&status), &[Code::FailedPrecondition, Code::InvalidArgument], what)?;
    need!(
        status.message.contains(NO_SUCH_PROPERTY),
        "the refusal of {what} does not name the property: {}",
        status.message
    );
    Ok(())
}

async fn unknown_property(cx: &Cx) -> Judged {
    let job = Job::program(["/bin/true"]).property(NO_SUCH_PROPERTY, "yes");
    let prepared = cx.prepare(&job);
    cx.client.put_all(&prepared.all()).await?;
    refused_property(cx, &prepared, &job, "an action with an unknown property").await?;
    pass()
}

async fn preferred_platform(cx: &Cx) -> Judged {
    let client = &cx.client;
    let good = platform(&cx.options.platform);
    let bad = Job::program(["/bin/true"]).property(NO_SUCH_PROPERTY, "yes");
    let bad_platform = bad.platform.clone();
    // The action's platform, the command's, and whether the server must refuse.
    let mut cases = vec![(None, bad_platform.clone(), true), (bad_platform.clone(), good.clone(), true)];
    if good.is_some() {
        cases.push((good.clone(), bad_platform, false));
        cases.push((None, good, false));
    }
    for (of_action, of_command, refuse) in cases {
        let job = Job::program(["/bin/true"]);
        let prepared = cx.prepare(&job);
        let (Ok(mut command), Ok(mut action)) =
            (Command::decode(&*prepared.command_blob), Action::decode(&*prepared.action_blob))
        else {
            unreachable!("an action that was just encoded cannot be decoded");
        };
        command.platform = of_command;
        let command_blob = command.encode_to_vec();
        action.command_digest = Some(client.digest(&command_blob));
        action.platform = of_action;
        let prepared = Prepared::of(client, &action, prepared.root, command_blob, prepared.blobs);
        client.put_all(&prepared.all()).await?;
        if refuse {
            refused_property(
                cx,
                &prepared,
                &job,
                "an action whose platform, or without it its command's, is unknown",
            )
            .await?;
        } else {
            cx.execute(&prepared, &job).await?.finish().await?.exited(0)?;
        }
    }
    noted(if cx.options.platform.is_empty() {
        "no platform was given, so a valid one was not checked"
    } else {
        ""
    })
}

async fn repeated_properties(cx: &Cx) -> Judged {
    let known = cx.options.platform.first().cloned();
    let (name, value) = known.unwrap_or_else(|| ("OSFamily".into(), "linux".into()));
    let twice = |other: &str| {
        let property = |value: &str| Property { name: name.clone(), value: value.to_owned() };
        let mut properties = vec![property(&value), property(other)];
        properties.sort_by(|a, b| a.value.cmp(&b.value));
        Platform { properties }
    };
    let other = if name == "OSFamily" && value != "windows" { "windows" } else { "conform-no-such-value" };
    for second in [value.as_str(), other] {
        let mut job = Job::program(["/bin/true"]);
        job.platform = Some(twice(second));
        let what = format!("an action with {name}={value} and {name}={second}");
        let answer = within(PROMPT * 3, &what, cx.run(&job)).await?;
        match answer {
            Ok(run) => {
                let (code, message) = run.status();
                let good = [Code::Ok, Code::InvalidArgument, Code::FailedPrecondition];
                need!(good.contains(&code), "{what} ended with {}", named(code, message));
                need!(second == value || code != Code::Ok, "{what} ran, although no executor has both");
            }
            Err(Stop::Fail(reason)) => {
                let allowed = [Code::InvalidArgument, Code::FailedPrecondition];
                need!(allowed.iter().any(|code| reason.contains(code_name(*code))), "{what}: {reason}");
            }
            Err(skip) => return Err(skip),
        }
    }
    pass()
}

async fn burst(cx: &Cx) -> Judged {
    let jobs: Vec<Job> = (0..64).map(|_| Job::program(["/bin/true"])).collect();
    let prepared: Vec<Prepared> = jobs.iter().map(|job| cx.prepare(job)).collect();
    let blobs: Vec<Vec<u8>> = prepared.iter().flat_map(Prepared::all).collect();
    cx.client.put_all(&blobs).await?;
    let answers = join_all(prepared.iter().zip(&jobs).map(|(prepared, job)| cx.execute(prepared, job))).await;
    let mut accepted: Vec<Running> = Vec::new();
    let mut refused = 0;
    for answer in answers {
        match answer {
            Ok(running) => accepted.push(running),
            Err(status) => {
                need!(
                    matches!(status.code(), Code::ResourceExhausted | Code::Unavailable),
                    "one of 64 parallel actions was refused with {}",
                    describe(&status)
                );
                refused += 1;
            }
        }
    }
    for run in join_all(accepted.into_iter().map(Running::finish)).await {
        run?.exited(0)?;
    }
    let strange = cx.client.transport().refusals().into_iter().find(|refusal| {
        refusal.method.ends_with("/Execute") && matches!(refusal.code, Code::Unknown | Code::Internal)
    });
    need!(
        strange.is_none(),
        "an Execute of this run was refused with {}",
        strange.map(|refusal| named(refusal.code, &refusal.message)).unwrap_or_default()
    );
    Ok(format!("{refused} of 64 parallel actions refused"))
}
