//! Execute and the related methods, against real servers and a simulated executor.

use std::sync::Arc;

use crate::support::{Farm, SOON, command, metadata, request, response};
use model::{ExecutionOutcome, ExecutionStage, Millis};
use parking_lot::Mutex;
use reapi::{
    bytestream::{ReadRequest, byte_stream_client::ByteStreamClient},
    execution::{Action, ExecuteRequest, execution_stage::Value as Stage},
    longrunning::{GetOperationRequest, WaitOperationRequest},
    protobuf, rpc, status,
};
use tonic::{Code, Request};

#[tokio::test]
async fn an_action_is_executed_and_its_result_comes() {
    let farm = Farm::start().await;
    let mut executor = farm.executor().await;
    let gateway = farm.gateway().await;
    let action = farm.action("1").await;
    let mut stream = gateway.run(&action).await;

    let first = stream.next().await;
    assert!(first.name.starts_with("main/operations/default/"), "{}", first.name);
    assert_eq!(metadata(&first).stage(), Stage::Queued);
    assert_eq!(metadata(&first).action_digest, Some(reapi::digest::to_proto(&action)));

    let offer = executor.offer().await;
    assert_eq!(offer.1.execution.action, action);
    assert_eq!(offer.1.execution.instance, "main");
    executor.progress(&offer.1.execution.key(), ExecutionStage::Running).await;
    let running = stream.until(|operation| metadata(operation).stage() == Stage::Executing).await;
    let running = metadata(running.last().unwrap());
    assert!(running.stdout_stream_name.starts_with("main/logstreams/"));
    assert_eq!(running.partial_execution_metadata.unwrap().worker, executor.id.to_string());

    let result = executor.result("hello").await;
    let outcome = executor.outcome(0, Some(&result));
    executor.finish(offer, outcome).await;
    let response = stream.response().await;
    assert_eq!(response.status.unwrap().code, 0);
    assert_eq!(response.result, Some(result));
    assert!(!response.cached_result);
    assert!(response.message.starts_with("trace "), "{}", response.message);
}

#[tokio::test]
async fn output_is_inlined_where_asked_for_and_traces_go_on() {
    let farm = Farm::start().await;
    let mut executor = farm.executor().await;
    let gateway = farm.gateway().await;
    let action = farm.action("1").await;
    let mut asked = Request::new(ExecuteRequest { inline_stdout: true, ..request(&action) });
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    asked.metadata_mut().insert("traceparent", trace.parse().unwrap());
    let stream = gateway.execution().execute(asked).await.unwrap().into_inner();
    executor.run_one("hello").await;
    let response = crate::support::Operations(stream).response().await;
    assert_eq!(response.result.unwrap().stdout_raw, b"hello");
    assert_eq!(response.message, "trace 0af7651916cd43dd8448eb211c80319c");
}

#[tokio::test]
async fn another_gateway_waits_for_it_too() {
    let farm = Farm::start().await;
    let mut executor = farm.executor().await;
    let (one, two) = (farm.gateway().await, farm.gateway().await);
    let mut stream = one.run(&farm.action("1").await).await;
    let name = stream.next().await.name;
    let mut waiting = two.wait(&name).await.unwrap();
    assert_eq!(waiting.next().await.name, name);
    executor.run_one("x").await;
    let (first, second) = (stream.response().await, waiting.response().await);
    assert_eq!(first, second);
    // The same holds after the end.
    let late = two.wait(&name).await.unwrap().response().await;
    assert_eq!(late, first);
    let got = one.operations().get_operation(GetOperationRequest { name }).await.unwrap().into_inner();
    assert_eq!(response(&got), first);
}

#[tokio::test]
async fn unknown_operations_are_not_found() {
    let farm = Farm::start().await;
    let gateway = farm.gateway().await;
    let unknown = format!("main/operations/default/{}", model::ExecutionId::generate());
    for name in [unknown.as_str(), "main/operations/nonsense", "nonsense"] {
        let error = gateway.wait(name).await.err().unwrap();
        assert_eq!(error.code(), Code::NotFound, "{name}");
        let request = GetOperationRequest { name: name.to_owned() };
        assert_eq!(gateway.operations().get_operation(request).await.unwrap_err().code(), Code::NotFound);
    }
    assert_eq!(gateway.wait("").await.err().unwrap().code(), Code::InvalidArgument);
}

#[tokio::test]
async fn a_cached_result_is_the_first_and_only_operation() {
    let farm = Farm::start().await;
    let mut executor = farm.executor().await;
    let gateway = farm.gateway().await;
    let action = farm.action("1").await;
    let result = executor.result("cached").await;
    farm.cas.put_action("main", &action, &result).await.unwrap();
    let mut stream = gateway.run(&action).await;
    let only = stream.next().await;
    assert!(response(&only).cached_result);
    assert_eq!(response(&only).result, Some(result.clone()));
    assert_eq!(metadata(&only).stage(), Stage::Completed);
    assert_eq!(stream.0.message().await.unwrap(), None);
    assert_eq!(gateway.wait(&only.name).await.err().unwrap().code(), Code::NotFound);

    let stream =
        gateway.execute(ExecuteRequest { skip_cache_lookup: true, ..request(&action) }).await.unwrap();
    executor.run_one("fresh").await;
    assert!(!stream.response().await.cached_result);

    let uncached = Action { do_not_cache: true, ..Action::default() };
    let uncached = farm.action_of(uncached, command(), "2").await;
    farm.cas.put_action("main", &uncached, &result).await.unwrap();
    let stream = gateway.run(&uncached).await;
    executor.run_one("fresh").await;
    assert!(!stream.response().await.cached_result);
}

#[tokio::test]
async fn an_executor_that_left_is_waited_for_and_that_is_said() {
    let farm = Farm::start().await;
    farm.pool().await;
    let gateway = farm.gateway().await;
    let mut stream = gateway.run(&farm.action("1").await).await;
    let first = metadata(&stream.next().await);
    let partial = first.partial_execution_metadata.unwrap();
    let why = rpc::Status::decode_from(&partial.auxiliary_metadata[0].value);
    assert!(
        why.message.starts_with("no executor is live; those that could run the action left"),
        "{}",
        why.message
    );
}

trait DecodeFrom: Sized {
    fn decode_from(bytes: &[u8]) -> Self;
}

impl<M: prost::Message + Default> DecodeFrom for M {
    fn decode_from(bytes: &[u8]) -> Self {
        Self::decode(bytes).unwrap()
    }
}

#[tokio::test]
async fn a_timeout_comes_with_the_partial_result() {
    let farm = Farm::start().await;
    let mut executor = farm.executor().await;
    let gateway = farm.gateway().await;
    let stream = gateway.run(&farm.action("1").await).await;
    let offer = executor.offer().await;
    let result = executor.result("so far").await;
    let log = farm.put(b"log".to_vec()).await;
    let outcome = ExecutionOutcome {
        message: "it ran longer than 1 s".into(),
        server_logs: vec![("stdout".into(), log)],
        ..executor.outcome(4, Some(&result))
    };
    executor.finish(offer, outcome).await;
    let response = stream.response().await;
    assert_eq!(response.status.unwrap().code, i32::from(Code::DeadlineExceeded));
    assert_eq!(response.result, Some(result));
    let file = response.server_logs.get("stdout").unwrap();
    assert_eq!(file.digest, Some(reapi::digest::to_proto(&log)));
}

#[tokio::test]
async fn a_lost_executor_sends_it_back_to_the_queue() {
    let farm = Farm::start().await;
    let mut executor = farm.executor().await;
    let gateway = farm.gateway().await;
    let mut stream = gateway.run(&farm.action("1").await).await;
    let (sequence, record) = executor.offer().await;
    executor.progress(&record.execution.key(), ExecutionStage::Running).await;
    stream.until(|operation| metadata(operation).stage() == Stage::Executing).await;
    let again = record.requeued(sequence, "its executor died".into(), None, true, Millis::of_this_machine());
    farm.bus.transition(&again, sequence, SOON).await.unwrap();
    stream.until(|operation| metadata(operation).stage() == Stage::Queued).await;
    executor.run_one("second").await;
    assert_eq!(stream.response().await.status.unwrap().code, 0);
}

#[tokio::test]
async fn a_restart_of_the_bus_in_mid_wait_changes_nothing() {
    let farm = Farm::start().await;
    let mut executor = farm.executor().await;
    let gateway = farm.gateway().await;
    let action = farm.action("1").await;
    let mut stream = gateway.run(&action).await;
    stream.next().await;
    let offer = executor.offer().await;
    farm.servers.kill_nats();
    // A cached result is returned without the bus.
    let result = executor.result("cached").await;
    farm.cas.put_action("main", &action, &result).await.unwrap();
    assert!(gateway.run(&action).await.response().await.cached_result);
    farm.servers.start_nats().await;
    executor.finish(offer, executor.outcome(0, Some(&result))).await;
    assert_eq!(stream.response().await.result, Some(result));
}

#[tokio::test]
async fn without_the_bus_a_client_is_told_to_try_again() {
    let farm = Farm::start().await;
    let _executor = farm.executor().await;
    let gateway = farm.gateway().await;
    farm.servers.kill_nats();
    let error = gateway.execute(request(&farm.action("1").await)).await.err().unwrap();
    assert_eq!(error.code(), Code::Unavailable, "{error}");
    assert!(status::retry_delay(&status::rpc_status(&error)).is_some());
}

#[tokio::test]
async fn waiting_for_an_operation_ends_with_its_time() {
    let farm = Farm::start().await;
    let mut executor = farm.executor().await;
    let gateway = farm.gateway().await;
    let mut stream = gateway.run(&farm.action("1").await).await;
    let name = stream.next().await.name;
    let wait = |nanos| WaitOperationRequest {
        name: name.clone(),
        timeout: Some(protobuf::Duration { seconds: 0, nanos }),
    };
    let pending = gateway.operations().wait_operation(wait(50_000_000)).await.unwrap().into_inner();
    assert!(!pending.done);
    executor.run_one("x").await;
    let done = WaitOperationRequest { name: name.clone(), timeout: None };
    assert!(gateway.operations().wait_operation(done).await.unwrap().into_inner().done);
    assert_eq!(stream.response().await.status.unwrap().code, 0);
}

#[tokio::test]
async fn output_can_be_read_while_it_runs() {
    let farm = Farm::start().await;
    let mut executor = farm.executor().await;
    let gateway = farm.gateway().await;
    let mut stream = gateway.run(&farm.action("1").await).await;
    let offer = executor.offer().await;
    let written = Arc::new(Mutex::new(b"first ".to_vec()));
    executor.serve_output(Arc::clone(&written)).await;
    executor.progress(&offer.1.execution.key(), ExecutionStage::Running).await;
    let running = stream.until(|operation| metadata(operation).stage() == Stage::Executing).await;
    let resource_name = metadata(running.last().unwrap()).stdout_stream_name;
    let read = ReadRequest { resource_name, ..ReadRequest::default() };
    let mut output = ByteStreamClient::new(gateway.channel.clone()).read(read).await.unwrap().into_inner();
    let mut seen = output.message().await.unwrap().unwrap().data;
    assert_eq!(seen, b"first ");
    written.lock().extend_from_slice(b"second ");
    while seen.len() < 13 {
        seen.extend(output.message().await.unwrap().unwrap().data);
    }
    let result = executor.result("first second third").await;
    let outcome = executor.outcome(0, Some(&result));
    executor.finish(offer, outcome).await;
    while let Some(piece) = output.message().await.unwrap() {
        seen.extend(piece.data);
    }
    assert_eq!(String::from_utf8(seen).unwrap(), "first second third");
    assert_eq!(stream.response().await.status.unwrap().code, 0);
}
