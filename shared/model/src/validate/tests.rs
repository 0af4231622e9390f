use super::*;
use crate::{BuildLimits, SomeTimeLimits, TimeLimits, WarmDefaults, WorkspaceUse};

fn limits() -> RequestLimits {
    let batch = SomeTimeLimits { lease_ttl_seconds: Some(60), ..SomeTimeLimits::default() };
    RequestLimits {
        warm: WarmDefaults {
            labels: [("tool".to_owned(), "bazel".to_owned())].into(),
            ..WarmDefaults::default()
        },
        build_limits: [("*".to_owned(), BuildLimits { processes: Some(100), ..BuildLimits::default() })]
            .into(),
        request_bytes_max: 1000,
        times: TimeLimits { timeout_seconds: 10, queue_timeout_seconds: 20, lease_ttl_seconds: 15 },
        times_by_priority: [(Priority::Batch, batch)].into(),
        times_max: TimeLimits { timeout_seconds: 100, queue_timeout_seconds: 200, lease_ttl_seconds: 300 },
        attempts: 3,
        attempts_max: 10,
        executor_types: ["x86".parse().unwrap(), "mac".parse().unwrap()].into(),
    }
}

fn request(change: impl FnOnce(&mut BuildRequest)) -> Result<Build, InvalidRequest> {
    let mut request = BuildRequest {
        id: Some("00000000-0000-4000-8000-000000000001".parse().unwrap()),
        command: vec!["true".into()],
        ..BuildRequest::default()
    };
    change(&mut request);
    let accepted =
        request.validate(&"core".parse().unwrap(), Some(Priority::Batch), None, &limits(), Millis(5))?;
    Ok(accepted.build)
}

#[test]
fn defaults_are_filled_in() {
    let build = request(|_| ()).unwrap();
    assert_eq!(
        (build.timeout_seconds, build.queue_timeout_seconds, build.max_attempts),
        (10, 20, Attempt(3))
    );
    assert_eq!(build.priority, Priority::Batch);
    assert_eq!(build.lease_ttl_seconds, 60, "as the settings say for this priority");
    assert_eq!(request(|r| r.lease_ttl_seconds = Some(7)).unwrap().lease_ttl_seconds, 7);
}

#[test]
fn limits_of_the_group_apply_and_none_may_be_exceeded() {
    let with = |processes| {
        request(|r| r.limits = BuildLimits { processes, memory_bytes: Some(7), ..BuildLimits::default() })
    };
    let asked = BuildLimits { processes: Some(9), memory_bytes: Some(7), ..BuildLimits::default() };
    assert_eq!(with(Some(9)).unwrap().limits, asked);
    let plain = request(|_| ()).unwrap();
    assert_eq!(plain.limits, BuildLimits { processes: Some(100), ..BuildLimits::default() });
    let error = with(Some(101)).unwrap_err().to_string();
    assert_eq!(error, "field limits.processes is 101: expected 1 to 100 (setting build_limits)");
    assert!(with(Some(0)).is_err());
    // What the settings add is not a part of what is asked.
    let asks_the_same = request(|r| r.limits = BuildLimits::default()).unwrap();
    assert_eq!(plain.request_digest, asks_the_same.request_digest);
    assert_ne!(plain.request_digest, with(Some(9)).unwrap().request_digest);
}

#[test]
fn builds_with_a_label_of_the_settings_are_warm_unless_they_say_otherwise() {
    let with = |tool: &str, workspace| {
        let build = request(|r| {
            r.labels = [("tool".to_owned(), tool.to_owned())].into();
            r.workspace = workspace;
        });
        build.unwrap().workspace
    };
    assert_eq!(with("bazel", None), WorkspaceUse::Warm);
    assert_eq!(with("make", None), WorkspaceUse::Fresh);
    assert_eq!(with("bazel", Some(WorkspaceUse::Fresh)), WorkspaceUse::Fresh);
    assert_eq!(with("make", Some(WorkspaceUse::Warm)), WorkspaceUse::Warm);
}

#[test]
fn globs_of_outputs_are_short_and_not_nested_deep() {
    let refused = |outputs: Vec<String>| request(|r| r.outputs = outputs).unwrap_err().to_string();
    assert!(refused(vec!["{".repeat(11) + "a" + &"}".repeat(11)]).contains("10 nested braces"));
    assert!(refused(vec!["a[".into()]).contains("invalid glob in field outputs"));
    assert!(refused(vec!["a".repeat(4097)]).contains("4097 bytes"));
    assert!(refused(vec!["a".repeat(100); 200]).contains("20000 bytes"));
    assert!(request(|r| r.outputs = vec!["{a,{b,c}}/**/*.o".into(); 500]).is_ok());
}

#[test]
fn whether_outputs_are_required_is_part_of_what_is_asked() {
    let digest = |required| request(|r| r.require_outputs = required).unwrap().request_digest;
    assert_ne!(digest(true), digest(false));
}

#[test]
fn what_is_wrong_is_named() {
    let refused = |change: fn(&mut BuildRequest)| request(change).unwrap_err().to_string();
    assert!(refused(|r| r.command.clear()).contains("command is empty"));
    assert!(refused(|r| r.command = vec![" ".into()]).contains("command is empty"));
    assert!(refused(|r| r.command.push("a\0b".into())).contains("NUL"));
    assert!(refused(|r| r.outputs = vec!["../x".into()]).contains("leaves the workspace"));
    assert!(refused(|r| r.outputs = vec!["../**".into()]).contains("leaves the workspace"));
    assert!(refused(|r| r.outputs = vec!["a/../../x".into()]).contains("leaves the workspace"));
    assert!(refused(|r| r.outputs = vec!["/etc/passwd".into()]).contains("leaves the workspace"));
    assert!(refused(|r| r.group = Some("other".parse().unwrap())).contains("the call is for group"));
    assert!(refused(|r| r.priority = Some(Priority::Emergency)).contains("the subject's priority"));
    assert!(refused(|r| r.id = None).contains("Nats-Msg-Id"));
    assert!(refused(|r| r.timeout_seconds = Some(101)).contains("1 to 100"));
    assert!(refused(|r| r.timeout_seconds = Some(0)).contains("1 to 100"));
    assert!(refused(|r| r.max_attempts = Some(11)).contains("1 to 10"));
    assert!(
        refused(|r| r.context = Context::Directory { path: "x".into(), ignore_files: false })
            .contains("absolute path")
    );
    assert!(
        refused(|r| r.context = Context::Git { url: "-u".into(), revision: "x".into(), patch: None })
            .contains("git URL")
    );
    let git = |url: &str| Context::Git { url: url.into(), revision: "x".into(), patch: None };
    for context in [git("ext::sh -c true"), git("fd::17")] {
        let message = request(|r| r.context = context).unwrap_err().to_string();
        assert!(message.contains("without the helpers ext:: and fd::"), "{message}");
    }
    assert!(refused(|r| r.lease_ttl_seconds = Some(301)).contains("1 to 300"));
    let vax = |r: &mut BuildRequest| r.executor_types = ["vax".parse().unwrap()].into();
    assert!(refused(vax).contains("this farm has mac, x86"));
    assert!(refused(|r| r.occupancy.add(&ExecutorType::x86(), Esu::from_micros(-1))).contains("0 to 100000"));
    assert!(refused(|r| drop(r.env.insert("A=B".into(), String::new()))).contains("A=B"));
}

#[test]
fn a_build_is_a_command_or_a_job() {
    let job =
        || Some(serde_json::from_str::<JobSource>(r#"{"tasks": [{"id": "a", "command": ["x"]}]}"#).unwrap());
    let build = request(|r| (r.command, r.job) = (Vec::new(), job())).unwrap();
    let kept = build.job.as_ref().unwrap();
    assert_eq!(kept.digest, job().unwrap().digest());
    let stored = Some(JobSource::Stored(crate::StoredJob { digest: kept.digest.clone(), size_bytes: None }));
    let by_digest = request(|r| (r.command, r.job) = (Vec::new(), stored)).unwrap();
    assert_eq!(by_digest.request_digest, build.request_digest, "it is the same build, wherever its job was");
    let mut counted = build.clone();
    counted.job.as_mut().unwrap().tasks = 1;
    // These are of the settings.
    counted.limits = BuildLimits::default();
    assert_eq!(counted.content_digest(&BTreeSet::new()), build.request_digest);
    assert_eq!(request(|r| r.job = job()), Err(InvalidRequest::CommandAndJob));
    let env = |r: &mut BuildRequest| {
        (r.command, r.job) = (Vec::new(), job());
        r.env.insert("A".into(), "b".into());
    };
    assert_eq!(request(env), Err(InvalidRequest::EnvOfJob));
}

#[test]
fn a_submitter_has_a_name() {
    assert!(request(|r| r.submitter = Some("Zdeněk <z@example.org>".into())).is_ok());
    for name in ["", "a\nb", &"x".repeat(201)] {
        assert!(request(|r| r.submitter = Some(name.into())).is_err(), "{name:?}");
    }
}

#[test]
fn a_dot_dot_inside_a_name_is_no_traversal() {
    assert!(request(|r| r.outputs = vec!["a..b/*.o".into()]).is_ok());
}

#[test]
fn the_same_request_has_the_same_digest_whenever_it_comes() {
    let first = request(|_| ()).unwrap();
    let mut later = first.clone();
    later.submitted_at_ms = Millis(99);
    later.estimated_by = Some(3);
    later.limits = BuildLimits::default();
    later.traceparent = Some("00-1-2-01".into());
    assert_eq!(first.request_digest, later.content_digest(&BTreeSet::new()));
    let other = request(|r| r.command.push("x".into())).unwrap();
    assert_ne!(first.request_digest, other.request_digest);
}

#[test]
fn an_unknown_field_is_refused_by_name() {
    let wrong =
        serde_json::from_str::<BuildRequest>(r#"{"comand":["true"],"command":["true"]}"#).unwrap_err();
    assert!(wrong.to_string().contains("comand"));
}
