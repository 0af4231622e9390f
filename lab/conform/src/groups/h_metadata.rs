//! Checks 140, 141, 145 and 146: properties, times and resources.

use reapi::{
    execution::{NodeProperties, NodeProperty},
    protobuf::{Timestamp, UInt32Value},
};
use tonic::Code;

use crate::{
    check::{Check, check},
    context::{Cx, noted, vacuous},
    job::{InputFile, Inputs, Job},
    names::fresh_text,
    stop::{Judged, Stop, fail, has_code, need, pass},
};

pub(crate) const CHECKS: &[Check] = &[
    check!(
        140,
        H,
        Must,
        Execution,
        "node properties of outputs: unknown ones refused, announced ones given",
        output_properties
    ),
    check!(141, H, Must, Execution, "announced node properties of inputs are applied", input_properties),
    check!(145, H, Should, Execution, "the times of a result are all set and in order", times),
    check!(146, H, May, Execution, "a result reports the resources that the action used", resources),
];

fn supported(cx: &Cx) -> Vec<String> {
    cx.executing().map(|execution| execution.supported_node_properties.clone()).unwrap_or_default()
}

async fn output_properties(cx: &Cx) -> Judged {
    let mut job = Job::sh("echo > out").outputs(["out"]);
    job.command.output_node_properties = vec!["conform-no-such-property".into()];
    let what = "an unknown output node property";
    has_code(Some(&cx.refusal(&job, what).await?), &[Code::InvalidArgument], what)?;
    let supported = supported(cx);
    let known: Vec<&str> =
        ["mtime", "unix_mode"].into_iter().filter(|name| supported.iter().any(|one| one == name)).collect();
    let mut job = Job::sh("echo > out; chmod 750 out; touch -d @1234567890 out; mkdir d; echo > d/f")
        .outputs(["out", "d"]);
    job.command.output_node_properties = known.iter().map(|&name| name.to_owned()).collect();
    if known.is_empty() {
        return noted("no node property is announced");
    }
    let run = cx.ok(&job).await?;
    let properties = run.result()?.output_files.first().and_then(|file| file.node_properties.clone());
    let properties = properties.unwrap_or_default();
    if known.contains(&"mtime") {
        let seconds = properties.mtime.map(|mtime| mtime.seconds);
        need!(seconds == Some(1_234_567_890), "the mtime of an output is {seconds:?}, expected 1234567890");
    }
    if known.contains(&"unix_mode") {
        let mode = properties.unix_mode.map(|mode| mode.value & 0o777);
        need!(mode == Some(0o750), "the mode of an output is {mode:?}, expected 0750");
    }
    Ok(known.join(" and "))
}

async fn input_properties(cx: &Cx) -> Judged {
    let supported = supported(cx);
    let has = |name: &str| supported.iter().any(|one| one == name);
    if !has("mtime") && !has("unix_mode") {
        return vacuous("neither mtime nor unix_mode is announced");
    }
    let properties = NodeProperties {
        properties: Vec::<NodeProperty>::new(),
        mtime: has("mtime").then_some(Timestamp { seconds: 1_000_000_000, nanos: 0 }),
        unix_mode: has("unix_mode").then_some(UInt32Value { value: 0o640 }),
    };
    let file =
        InputFile { content: fresh_text().into_bytes(), executable: false, properties: Some(properties) };
    let plain = InputFile { properties: None, ..file.clone() };
    let inputs = Inputs::default().with("file", file).with("plain", plain);
    let output = cx.output(&Job::sh("stat -c '%Y %a' file; stat -c '%Y %a' plain").inputs(inputs)).await?;
    let (own, plain) = output.trim().split_once('\n').unwrap_or_default();
    let (mtime, mode) = own.split_once(' ').unwrap_or_default();
    need!(!has("mtime") || mtime == "1000000000", "the mtime of an input is {mtime}, expected 1000000000");
    need!(!has("unix_mode") || mode == "640", "the mode of an input is {mode}, expected 640");
    need!(plain != own, "a file of the same content has the properties of its twin");
    pass()
}

fn nanos(name: &str, time: Option<&Timestamp>) -> Result<i128, Stop> {
    match time {
        Some(time) => Ok(i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanos)),
        None => fail!("{name} is not set"),
    }
}

async fn times(cx: &Cx) -> Judged {
    let run = cx.ok(&Job::sh("sleep 0.5; echo > out").outputs(["out"])).await?;
    let Some(metadata) = &run.result()?.execution_metadata else { fail!("execution_metadata is not set") };
    let all = [
        ("queued_timestamp", metadata.queued_timestamp.as_ref()),
        ("worker_start_timestamp", metadata.worker_start_timestamp.as_ref()),
        ("input_fetch_start_timestamp", metadata.input_fetch_start_timestamp.as_ref()),
        ("input_fetch_completed_timestamp", metadata.input_fetch_completed_timestamp.as_ref()),
        ("execution_start_timestamp", metadata.execution_start_timestamp.as_ref()),
        ("execution_completed_timestamp", metadata.execution_completed_timestamp.as_ref()),
        ("output_upload_start_timestamp", metadata.output_upload_start_timestamp.as_ref()),
        ("output_upload_completed_timestamp", metadata.output_upload_completed_timestamp.as_ref()),
        ("worker_completed_timestamp", metadata.worker_completed_timestamp.as_ref()),
    ];
    let mut before: Option<(&str, i128)> = None;
    for (name, time) in all {
        let time = nanos(name, time)?;
        if let Some((earlier, at)) = before {
            need!(at <= time, "{name} is before {earlier}");
        }
        before = Some((name, time));
    }
    let end = nanos("execution_completed_timestamp", metadata.execution_completed_timestamp.as_ref())?;
    let ran = end - nanos("execution_start_timestamp", metadata.execution_start_timestamp.as_ref())?;
    need!(ran >= 450_000_000, "a run of 0.5 s lasted {} ms", ran / 1_000_000);
    if let Some(duration) = &metadata.virtual_execution_duration {
        let duration = i128::from(duration.seconds) * 1_000_000_000 + i128::from(duration.nanos);
        need!(
            (450_000_000..=ran + 200_000_000).contains(&duration),
            "virtual_execution_duration is {} ms of a run of {} ms",
            duration / 1_000_000,
            ran / 1_000_000
        );
    }
    need!(!metadata.worker.is_empty(), "worker is not set");
    pass()
}

async fn resources(cx: &Cx) -> Judged {
    let run = cx.ok(&Job::sh("i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done")).await?;
    let metadata = run.result()?.execution_metadata.clone().unwrap_or_default();
    need!(!metadata.auxiliary_metadata.is_empty(), "auxiliary_metadata is empty");
    for any in &metadata.auxiliary_metadata {
        need!(any.type_url.contains('/'), "an auxiliary message has the type {:?}", any.type_url);
        need!(!any.value.is_empty(), "the auxiliary message {} is empty", any.type_url);
    }
    let types: Vec<&str> =
        metadata.auxiliary_metadata.iter().filter_map(|any| any.type_url.rsplit('/').next()).collect();
    Ok(types.join(", "))
}
