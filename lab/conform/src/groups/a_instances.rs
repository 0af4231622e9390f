//! Checks 16–19: instance names, request metadata, and retry hints in errors.

use std::collections::BTreeSet;

use prost::Message as _;
use reapi::execution::{GetCapabilitiesRequest, RequestMetadata, ToolDetails};
use tonic::{Code, Request, Status, metadata::MetadataValue};

use crate::{
    check::{Check, Phase, check},
    client::{Client, PIECE, pieces},
    context::{Cx, noted},
    job::Job,
    names::fresh,
    stop::{Judged, Stop, code_name, fail, need, pass, refused},
};

pub(crate) const CHECKS: &[Check] = &[
    check!(16, A, May, Store, "an unknown instance gets one and the same error everywhere", unknown_instance),
    check!(
        17,
        A,
        Must,
        Store,
        "instance names: reserved segments refused, nested and empty ones work",
        instance_names
    ),
    check!(18, A, May, Store, "request metadata may be absent, good or malformed", request_metadata),
    check!(19, A, Should, Nothing, "retryable refusals say when to retry", retry_info).at(Phase::Last),
];

/// Calls each method on this instance and returns its name and error code, if any.
async fn answers(
    cx: &Cx,
    client: &Client,
    content: &[u8],
) -> Result<Vec<(&'static str, Option<Code>)>, Stop> {
    fn code<T>(answer: Result<T, Status>) -> Option<Code> {
        answer.err().map(|status| status.code())
    }
    let digest = client.digest(content);
    let request = GetCapabilitiesRequest { instance_name: client.instance.clone() };
    let mut answers = vec![
        ("GetCapabilities", code(client.capabilities().get_capabilities(request).await)),
        ("FindMissingBlobs", code(client.missing(vec![digest.clone()]).await)),
        ("BatchUpdateBlobs", code(client.batch_update(vec![client.update(content)]).await)),
        ("BatchReadBlobs", code(client.batch_read(vec![digest.clone()], Vec::new()).await)),
        ("GetTree", code(client.tree(&digest, 0, "").await)),
        ("ByteStream.Read", code(client.read(&digest).await)),
        ("ByteStream.Write", code(client.write(&client.write_name(&digest), pieces(content, PIECE)).await)),
        ("GetActionResult", code(client.action_result(&digest).await)),
    ];
    if cx.executing().is_some_and(|execution| execution.exec_enabled) {
        let other = Cx { client: client.clone(), ..cx.clone() };
        let job = Job::program(["/bin/true"]);
        answers.push(("Execute", code(other.execute(&cx.prepare(&job), &job).await)));
    }
    Ok(answers)
}

async fn unknown_instance(cx: &Cx) -> Judged {
    let content = fresh(200);
    cx.client.put(&content).await?;
    let client = cx.client.of_instance(&cx.options.unknown_instance);
    let answers = answers(cx, &client, &content).await?;
    for (call, code) in &answers {
        match code {
            None => fail!("{call} serves the instance {:?}", client.instance),
            Some(Code::InvalidArgument | Code::NotFound) => {}
            Some(other) => fail!("{call} answers an unknown instance with {}", code_name(*other)),
        }
    }
    let codes: BTreeSet<&str> = answers.iter().filter_map(|(_, code)| code.map(code_name)).collect();
    need!(
        codes.len() == 1,
        "an unknown instance is answered with different codes, depending on the call: {codes:?}"
    );
    pass()
}

const RESERVED: [&str; 7] =
    ["blobs", "uploads", "actions", "actionResults", "operations", "capabilities", "compressed-blobs"];

async fn instance_names(cx: &Cx) -> Judged {
    for word in RESERVED {
        for name in [word.to_owned(), format!("{word}/b"), format!("a/{word}/b")] {
            let client = cx.client.of_instance(&name);
            let what = format!("the instance name {name:?}");
            refused(client.missing(vec![client.absent()]).await, &[Code::InvalidArgument], &what)?;
            refused(client.action_result(&client.absent()).await, &[Code::InvalidArgument], &what)?;
            refused(client.batch_update(vec![client.update(b"x")]).await, &[Code::InvalidArgument], &what)?;
        }
    }
    for name in ["", &cx.options.nested_instance] {
        let client = cx.client.of_instance(name);
        let content = fresh(2000);
        for (call, code) in answers(cx, &client, &content).await? {
            let expected = match call {
                "GetActionResult" => Some(Code::NotFound),
                "GetTree" => Some(Code::InvalidArgument),
                // Its blobs are not uploaded: this check is about the name only.
                "Execute" => code.filter(|code| *code == Code::FailedPrecondition),
                _ => None,
            };
            let tree = call == "GetTree" && code == Some(Code::FailedPrecondition);
            need!(
                code == expected || tree,
                "{call} answers the instance {name:?} with {}",
                code.map_or("OK", code_name)
            );
        }
        let digest = client.digest(&content);
        need!(client.read(&digest).await? == content, "a blob of the instance {name:?} cannot be read");
        if cx.executing().is_some_and(|execution| execution.exec_enabled) {
            let cx = Cx { client: client.clone(), ..cx.clone() };
            let run = cx.ok(&Job::random()).await?;
            need!(
                cx.wait(&run.name).await?.finish().await?.response.result == run.response.result,
                "WaitExecution in the instance {name:?} returns another result"
            );
            client.action_result(&run.action).await?;
        }
    }
    pass()
}

async fn request_metadata(cx: &Cx) -> Judged {
    const HEADER: &str = "build.bazel.remote.execution.v2.requestmetadata-bin";
    let client = &cx.client;
    let good = RequestMetadata {
        tool_details: Some(ToolDetails { tool_name: "conform".into(), tool_version: "1".into() }),
        action_id: "action".into(),
        tool_invocation_id: "invocation".into(),
        correlated_invocations_id: "all".into(),
        action_mnemonic: "Check".into(),
        target_id: "//:check".into(),
        configuration_id: "none".into(),
    };
    let headers = [None, Some(good.encode_to_vec()), Some(vec![0xff; 40]), Some(Vec::new())];
    for header in headers {
        let mut request = Request::new(reapi::execution::FindMissingBlobsRequest {
            instance_name: client.instance.clone(),
            blob_digests: vec![client.absent()],
            digest_function: client.function_value(),
        });
        let what = match &header {
            None => "absent",
            Some(bytes) if bytes.first() == Some(&0xff) => "malformed",
            Some(bytes) if bytes.is_empty() => "empty",
            Some(_) => "good",
        };
        if let Some(bytes) = header {
            request.metadata_mut().insert_bin(HEADER, MetadataValue::from_bytes(&bytes));
        }
        if let Err(status) = client.cas().find_missing_blobs(request).await {
            fail!("a call with {what} metadata is answered with {}", code_name(status.code()));
        }
    }
    pass()
}

async fn retry_info(cx: &Cx) -> Judged {
    let mut refusals = cx.client.transport().refusals();
    if let Some(full) = cx.full().await? {
        let content = fresh(1 << 20);
        let digest = full.digest(&content);
        let answer = full.write(&full.write_name(&digest), pieces(&content, PIECE)).await;
        refused(answer, &[Code::ResourceExhausted], "a write to the full store")?;
        refusals.extend(full.transport().refusals());
    }
    refusals.retain(|refusal| matches!(refusal.code, Code::Unavailable | Code::ResourceExhausted));
    for refusal in &refusals {
        need!(
            refusal.details.iter().any(|detail| detail.ends_with("google.rpc.RetryInfo")),
            "{} was refused with {} ({}) and no RetryInfo",
            refusal.method,
            code_name(refusal.code),
            refusal.message
        );
    }
    noted(if refusals.is_empty() { "this run had no such refusal" } else { "" })
}
