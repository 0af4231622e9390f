//! Admission of actions: what is accepted, with which group, priority, pool and needs.

use crate::support::{Farm, command, platform, request};
use model::{DigestFunction, Needs, TestSize};
use reapi::{
    execution::{
        Action, Command, ExecuteRequest, ExecutionPolicy, RequestMetadata, command::EnvironmentVariable,
    },
    protobuf, status,
};
use tonic::{Code, Request, metadata::MetadataValue};

#[tokio::test]
async fn everything_that_is_missing_is_named() {
    let farm = Farm::start().await;
    farm.pool().await;
    let gateway = farm.gateway().await;
    let absent = DigestFunction::Sha256.digest(b"absent");
    let error = gateway.execute(request(&absent)).await.err().unwrap();
    assert_eq!(error.code(), Code::FailedPrecondition);
    assert_eq!(status::missing_blobs(&status::rpc_status(&error)), [absent]);

    // Many digests do not fit into the trailers of a call, so they are sent in a response.
    let nodes = (0..500).map(|number| reapi::execution::FileNode {
        name: format!("file-{number:04}"),
        digest: Some(reapi::digest::to_proto(&DigestFunction::Sha256.digest(format!("{number}").as_bytes()))),
        ..Default::default()
    });
    let root = reapi::execution::Directory { files: nodes.collect(), ..Default::default() };
    let root = farm.put(prost::Message::encode_to_vec(&root)).await;
    let action = Action {
        command_digest: Some(reapi::digest::to_proto(&absent)),
        input_root_digest: Some(reapi::digest::to_proto(&root)),
        ..Action::default()
    };
    let action = farm.put(prost::Message::encode_to_vec(&action)).await;
    let status = gateway.run(&action).await.response().await.status.unwrap();
    assert_eq!(status.code, i32::from(Code::FailedPrecondition));
    let missing = status::missing_blobs(&status);
    assert_eq!(missing.len(), 501);
    assert!(missing.contains(&absent));
}

#[tokio::test]
async fn what_can_never_run_is_refused_at_once() {
    let farm = Farm::start().await;
    farm.pool().await;
    let gateway = farm.gateway().await;
    let with = |action: Action, command: Command| farm.action_of(action, command, "1");
    let refused = async |request: ExecuteRequest| gateway.execute(request).await.err().unwrap();

    let action = Action { platform: Some(platform("OSFamily", "plan9")), ..Action::default() };
    let error = refused(request(&with(action, command()).await)).await;
    assert_eq!(error.code(), Code::FailedPrecondition);
    for part in ["OSFamily", "plan9", "linux"] {
        assert!(error.message().contains(part), "{}", error.message());
    }
    let long = protobuf::Duration { seconds: 3601, nanos: 0 };
    let action = Action { timeout: Some(long), ..Action::default() };
    let error = refused(request(&with(action, command()).await)).await;
    assert_eq!((error.code(), error.message().contains("3600")), (Code::InvalidArgument, true));
    let nothing = with(Action::default(), Command::default()).await;
    assert_eq!(refused(request(&nothing)).await.code(), Code::InvalidArgument);
    let good = farm.action("1").await;
    for instance in ["unknown", "main/blobs", "a//b"] {
        let error = refused(ExecuteRequest { instance_name: instance.into(), ..request(&good) }).await;
        assert_eq!(error.code(), Code::InvalidArgument, "{instance}");
    }
    let odd = reapi::execution::Digest { hash: "ABC".into(), size_bytes: 1 };
    let error = refused(ExecuteRequest { action_digest: Some(odd), ..request(&good) }).await;
    assert_eq!(error.code(), Code::InvalidArgument);
}

#[tokio::test]
async fn sizes_that_are_asked_for_are_checked_and_kept() {
    let farm = Farm::start().await;
    let mut executor = farm.executor().await;
    let gateway = farm.gateway().await;
    let asking = async |name: &str, value: &str| {
        let action = Action { platform: Some(platform(name, value)), ..Action::default() };
        let variable = EnvironmentVariable { name: "TEST_SIZE".into(), value: "large".into() };
        let command =
            Command { environment_variables: vec![variable], output_paths: vec!["out".into()], ..command() };
        farm.action_of(action, command, name).await
    };
    let metadata = RequestMetadata { target_id: "//a:b".into(), ..RequestMetadata::default() };
    let mut asked = Request::new(request(&asking("EstimatedCPU", "2500m").await));
    let value = MetadataValue::from_bytes(&prost::Message::encode_to_vec(&metadata));
    asked.metadata_mut().insert_bin(reapi::metadata::REQUEST_METADATA, value);
    let _stream = gateway.execute(asked).await.unwrap();
    let execution = executor.offer().await.1.execution;
    let needs = Needs { cpu_millis: Some(2500), test_size: TestSize::Large, ..Needs::default() };
    assert_eq!(execution.needs, needs);
    // History keys: command, target and mnemonic. Affinity keys: first output and target.
    assert_eq!((execution.keys.history.len(), execution.keys.affinity.len()), (3, 2));
    let _stream = gateway.run(&asking("resources:gpu", "0.5").await).await;
    let execution = executor.offer().await.1.execution;
    assert_eq!(execution.needs.custom[&"gpu".parse().unwrap()].micros(), 500_000);

    let refused = async |name: &str, value: &str| {
        gateway.execute(request(&asking(name, value).await)).await.err().unwrap()
    };
    for (name, value) in [("EstimatedMemory", "much"), ("resources:gpu", "-1"), ("exclusive", "perhaps")] {
        let error = refused(name, value).await;
        assert_eq!(error.code(), Code::InvalidArgument);
        assert!(error.message().contains(name) && error.message().contains(value), "{}", error.message());
    }
    // No pool can run it: the message has the property, the value, and the available values.
    for (name, value, offered) in [("EstimatedCPU", "5", "4"), ("resources:gpu", "3", "2")] {
        let error = refused(name, value).await;
        assert_eq!(error.code(), Code::FailedPrecondition);
        for part in [name, value, offered] {
            assert!(error.message().contains(part), "{}", error.message());
        }
    }
}

#[tokio::test]
async fn group_and_priority_follow_the_rules() {
    let farm = Farm::start().await;
    let mut executor = farm.executor().await;
    let gateway = farm.gateway().await;
    let action = farm.action("1").await;
    let policy = Some(ExecutionPolicy { priority: 99 });
    let mut asked = Request::new(ExecuteRequest { execution_policy: policy, ..request(&action) });
    asked.metadata_mut().insert("x-forebay-group", "other".parse().unwrap());
    let stream = gateway.execution().execute(asked).await.unwrap();
    let execution = executor.offer().await.1.execution;
    assert_eq!((execution.group.as_str(), execution.priority), ("other", 10));
    drop(stream);
    let mut asked = Request::new(request(&action));
    asked.metadata_mut().insert("x-forebay-group", "third".parse().unwrap());
    // A sender that claims to be a build of the group but does not run is refused too.
    let mut claimed = Request::new(request(&action));
    claimed.metadata_mut().clone_from(asked.metadata());
    let sender = format!("worker/{}/1", model::BuildId::generate());
    claimed.metadata_mut().insert("x-forebay-build", sender.parse().unwrap());
    for asked in [asked, claimed] {
        let refusal = gateway.execution().execute(asked).await.unwrap_err();
        assert_eq!(refusal.code(), Code::InvalidArgument, "{refusal:?}");
    }
}
