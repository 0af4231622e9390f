//! Clients that go away or cancel what they asked for.

use std::time::Duration;

use crate::support::{Farm, Gateway, SOON, begun, code, key, of_invocation, request};
use futures::StreamExt as _;
use model::{ExecutionOutcome, ExecutionPhase, ExecutionStage, Millis, Urgency};
use reapi::longrunning::CancelOperationRequest;
use tonic::Code;

async fn cancel(gateway: &Gateway, name: &str, invocation: &str) {
    let request = CancelOperationRequest { name: name.to_owned() };
    gateway.operations().cancel_operation(of_invocation(invocation, request)).await.unwrap();
}

#[tokio::test]
async fn a_cancelled_operation_ends_as_cancelled() {
    let farm = Farm::start().await;
    let mut executor = farm.executor().await;
    let (one, two) = (farm.gateway().await, farm.gateway().await);
    let mut stream = one.run(&farm.action("1").await).await;
    let name = stream.next().await.name;
    let offer = executor.offer().await;
    let cancel = CancelOperationRequest { name: name.clone() };
    two.operations().cancel_operation(cancel.clone()).await.unwrap();
    assert_eq!(stream.response().await.status.unwrap().code, i32::from(Code::Cancelled));
    // Cancelling again is not an error; the executor's own result arrives too late.
    two.operations().cancel_operation(cancel).await.unwrap();
    let late = offer.1.finished(offer.0, executor.outcome(0, None), Millis::of_this_machine());
    let written = farm.bus.transition(&late, offer.0, SOON).await.unwrap();
    assert!(matches!(written, bus::Written::Lost(Some(_))), "{written:?}");
}

#[tokio::test]
async fn what_the_last_client_left_is_ended() {
    let farm = Farm::start().await;
    let mut executor = farm.executor().await;
    let (one, two) = (farm.gateway().await, farm.gateway().await);
    let mut stream = one.run(&farm.action("1").await).await;
    let name = stream.next().await.name;
    let offer = executor.offer().await;
    let waiting = two.wait(&name).await.unwrap();
    // A client waits at the other gateway.
    drop(stream);
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert!(farm.last(&key(&name)).await.outcome().is_none(), "one client still waits");
    drop(waiting);
    let ended = async {
        loop {
            let (sequence, _) = offer;
            if let Some((now, record)) = farm.bus.records().latest(&key(&name)).await.unwrap()
                && now > sequence
            {
                return record.outcome().unwrap().clone();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let ended: ExecutionOutcome = tokio::time::timeout(SOON, ended).await.unwrap();
    assert_eq!((ended.code, ended.message.as_str()), (1, "cancelled: all clients disconnected"));
    // Waiting for it again returns the same outcome.
    let response = two.wait(&name).await.unwrap().response().await;
    assert_eq!(response.status.unwrap().code, 1);
}

#[tokio::test]
async fn a_gateway_that_stops_ends_nothing() {
    let farm = Farm::start().await;
    let mut executor = farm.executor().await;
    let (one, two) = (farm.gateway().await, farm.gateway().await);
    let mut stream = one.run(&farm.action("1").await).await;
    let name = stream.next().await.name;
    one.stop.cancel();
    let error = loop {
        match tokio::time::timeout(SOON, stream.0.message()).await.unwrap() {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the stream must not end without an error before the operation is done"),
            Err(error) => break error,
        }
    };
    assert_eq!(error.code(), Code::Unavailable);
    let waiting = two.wait(&name).await.unwrap();
    executor.run_one("x").await;
    assert_eq!(waiting.response().await.status.unwrap().code, 0);
}

#[tokio::test]
async fn a_client_that_goes_away_spares_the_others() {
    let farm = Farm::start().await;
    let mut executor = farm.executor().await;
    let (one, two) = (farm.gateway().await, farm.gateway().await);
    let action = farm.action("1").await;
    let mut questions = farm.questions().await;
    let (_, first) = begun(&one, request(&action)).await;
    let (_, second) = begun(&two, request(&action)).await;
    drop(first);
    // Its gateway has asked the other one and received an answer.
    let question = tokio::time::timeout(SOON, questions.next()).await.unwrap().unwrap();
    let mut replies = farm.bus.client().subscribe(question.reply.unwrap()).await.unwrap();
    let _ = tokio::time::timeout(Duration::from_millis(600), replies.next()).await;
    executor.run_one("x").await;
    assert_eq!(code(second).await, Code::Ok);
}

#[tokio::test]
async fn cancelling_spares_the_others() {
    let farm = Farm::start().await;
    let mut executor = farm.executor().await;
    let (one, two) = (farm.gateway().await, farm.gateway().await);
    // Clients with and without invocation ids; the first still connected or gone; the other at the
    // same gateway or not.
    let cases =
        [("a", "b", false, &two), ("a", "b", true, &two), ("", "", false, &one), ("", "", true, &two)];
    for (number, (first, second, gone, gateway)) in cases.into_iter().enumerate() {
        let action = farm.action(&number.to_string()).await;
        let (name, stream) = begun(&one, of_invocation(first, request(&action))).await;
        let (_, other) = begun(gateway, of_invocation(second, request(&action))).await;
        let stream = (!gone).then_some(stream);
        cancel(&one, &name, first).await;
        executor.run_one("x").await;
        assert_eq!(code(other).await, Code::Ok, "case {number}");
        drop(stream);
    }
}

#[tokio::test]
async fn the_last_one_ends_it_at_once() {
    let farm = Farm::start().await;
    let _executor = farm.executor().await;
    let (one, two) = (farm.gateway().await, farm.gateway().await);
    let action = farm.action("1").await;
    let (name, first) = begun(&one, of_invocation("a", request(&action))).await;
    let (_, second) = begun(&two, of_invocation("b", request(&action))).await;
    cancel(&one, &name, "a").await;
    drop(first);
    // The server may notice the closed stream a little later than the call that follows it.
    let ended = async {
        loop {
            cancel(&one, &name, "b").await;
            if farm.last(&key(&name)).await.outcome().is_some() {
                return;
            }
        }
    };
    tokio::time::timeout(SOON, ended).await.unwrap();
    assert_eq!(code(second).await, Code::Cancelled);
}

#[tokio::test]
async fn a_cancellation_is_decided_soon() {
    let farm = Farm::start().await;
    let executor = farm.executor().await;
    let gateway = farm.gateway().await;
    let orders = bus::Subject::ExecutorControl(executor.id.clone()).to_string();
    let mut orders = farm.bus.client().subscribe(orders).await.unwrap();
    // The gateway has another connection: the server must know the subscription before its order.
    farm.bus.client().flush().await.unwrap();
    let mut took = Vec::new();
    for number in 0..5 {
        let (name, mut stream) = begun(&gateway, request(&farm.action(&number.to_string()).await)).await;
        executor.progress(&key(&name), ExecutionStage::Running).await;
        stream.next().await;
        let began = std::time::Instant::now();
        cancel(&gateway, &name, "").await;
        tokio::time::timeout(SOON, orders.next()).await.unwrap().unwrap();
        took.push(began.elapsed());
    }
    took.sort();
    assert!(took[2] < Duration::from_millis(200), "{took:?}");
}

#[tokio::test]
async fn it_ends_with_the_last_of_several_and_not_in_their_grace() {
    let mut farm = Farm::start().await;
    farm.settings.action_waiter_grace_ms = 1000;
    let _executor = farm.executor().await;
    let (one, two) = (farm.gateway().await, farm.gateway().await);
    let action = farm.action("1").await;
    let mut questions = farm.questions().await;
    let (name, first) = begun(&one, request(&action)).await;
    let (_, second) = begun(&two, request(&action)).await;
    drop((first, second));
    // Within the grace period: the same execution, which is then abandoned.
    let (same, third) = begun(&one, request(&action)).await;
    assert_eq!(name, same);
    // The other gateway asks, and the answer is that a client waits here.
    tokio::time::timeout(SOON, questions.next()).await.unwrap().unwrap();
    let silent = tokio::time::timeout(Duration::from_millis(1200), questions.next()).await;
    assert!(silent.is_err(), "this gateway has no reason to ask");
    assert!(farm.last(&key(&name)).await.outcome().is_none());
    drop(third);
    let mut waiting = Box::pin(async {
        loop {
            if let Some(outcome) = farm.last(&key(&name)).await.outcome() {
                return outcome.message.clone();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let message = tokio::time::timeout(SOON, &mut waiting).await.unwrap();
    assert_eq!(message, "cancelled: all clients disconnected");
}

#[tokio::test]
async fn whoever_comes_while_gateways_ask_keeps_it() {
    let farm = Farm::start().await;
    let mut executor = farm.executor().await;
    let (one, two) = (farm.gateway().await, farm.gateway().await);
    let mut questions = farm.questions().await;
    // A question about the execution before may still come.
    let mut asked = async |name: &str| {
        let id = key(name).id.to_string();
        let asks = |question: &async_nats::Message| String::from_utf8_lossy(&question.payload).contains(&id);
        tokio::time::timeout(SOON, async { while !asks(&questions.next().await.unwrap()) {} }).await.unwrap();
    };
    for (number, gateway) in [&one, &two].into_iter().enumerate() {
        let action = farm.action(&number.to_string()).await;
        let (name, first) = begun(&one, request(&action)).await;
        drop(first);
        // Neither gateway knows a waiting client at this moment.
        asked(&name).await;
        let (same, second) = begun(gateway, request(&action)).await;
        assert_eq!(name, same);
        let record = farm.last(&key(&name)).await;
        assert_eq!((&record.phase, record.urgency()), (&ExecutionPhase::Raised, Urgency::default()));
        // The new record prevented the end, and the gateway asks again.
        asked(&name).await;
        executor.offer().await;
        executor.run_one("x").await;
        assert_eq!(code(second).await, Code::Ok);
    }
}

#[tokio::test]
async fn whoever_comes_while_it_is_cancelled_keeps_it() {
    let farm = Farm::start().await;
    let mut executor = farm.executor().await;
    let (one, two) = (farm.gateway().await, farm.gateway().await);
    let mut questions = farm.questions().await;
    let action = farm.action("1").await;
    let (name, first) = begun(&one, request(&action)).await;
    let cancelling = cancel(&one, &name, "");
    let joining = async {
        tokio::time::timeout(SOON, questions.next()).await.unwrap().unwrap();
        begun(&two, request(&action)).await
    };
    let ((), (same, second)) = tokio::join!(cancelling, joining);
    assert_eq!(name, same);
    executor.offer().await;
    executor.run_one("x").await;
    assert_eq!(code(second).await, Code::Ok);
    drop(first);
}
