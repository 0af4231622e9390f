//! Placement: counted resources, and work granted to executors with free capacity.

use std::time::Duration;

use bus::Message;
use farm::{Farm, SOON};
use futures::StreamExt as _;
use model::{Grants, Outcome};
use remote::RemoteError;

use crate::{
    acting::{self, SHA256},
    check::{self, script, until},
    marks::{Begun, Marks, asking, history_of, phases, upload_asking},
};

/// Long enough to detect an action that must not start.
const NOTHING_MORE: Duration = Duration::from_millis(1500);
const GPU: &str = "resources:gpu";

/// Records all messages on a plain subject that can be decoded.
async fn overheard<T: Message + 'static>(
    farm: &farm::Farm,
    subject: String,
) -> tokio::sync::mpsc::UnboundedReceiver<T> {
    let mut messages = farm.bus().client().subscribe(subject).await.unwrap();
    farm.bus().client().flush().await.unwrap();
    let (tell, told) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(message) = messages.next().await {
            if let Ok(message) = T::from_json(&message.payload) {
                let _ = tell.send(message);
            }
        }
    });
    told
}

#[tokio::test]
async fn eight_that_wait_for_one_start_at_one_wake_up() {
    let farm = acting::builder().env("FOREBAY_EXECUTOR_SLOTS", "8").start().await;
    let (remote, marks) = (acting::remote(&farm).await, Marks::of(&farm));
    let large = upload_asking(&remote, &marks.script("large"), &[("EstimatedCPU", "8")]).await;
    let large = Begun::new(&remote, &large).await;
    marks.begun("large", 1).await;
    let names: Vec<String> = (0..8).map(|number| format!("small-{number}")).collect();
    let mut small = Vec::new();
    for name in &names {
        let action = acting::upload(&remote, &marks.script(name)).await;
        small.push(Begun::new(&remote, &action).await);
    }
    tokio::time::sleep(NOTHING_MORE).await;
    assert!(names.iter().all(|name| marks.runs(name).is_empty()), "the executor is full");
    let mut grants = overheard::<Grants>(&farm, "forebay.executor.grant.>".to_owned()).await;
    marks.go("large");
    let all = || names.iter().all(|name| marks.runs(name).len() == 1);
    until("all eight run", SOON, all).await;
    // All of them were in one message.
    let mut claims = Vec::new();
    while let Ok(grants) = grants.try_recv() {
        claims.extend(Some(grants.claimed.len()).filter(|count| *count > 0));
    }
    assert_eq!(claims, [8]);
    for name in &names {
        marks.go(name);
    }
    large.ended().await;
    for one in small {
        one.ended().await;
    }
}

#[tokio::test]
async fn what_waits_for_a_gpu_lets_others_pass_and_starts_when_it_is_free() {
    let builder = acting::builder().env("FOREBAY_EXECUTOR_SLOTS", "4");
    let farm = builder.env("FOREBAY_EXECUTOR_RESOURCES", r#"{"gpu":1}"#).start().await;
    let (remote, marks) = (acting::remote(&farm).await, Marks::of(&farm));
    let gpu = async |name: &str| {
        let action = upload_asking(&remote, &marks.script(name), &[(GPU, "1")]).await;
        Begun::new(&remote, &action).await
    };
    let first = gpu("first").await;
    marks.begun("first", 1).await;
    let second = gpu("second").await;
    for number in 0..12 {
        let action = upload_asking(&remote, &format!("echo {number}"), &[]).await;
        let response = acting::executed(&remote, action).await;
        assert_eq!(acting::stdout(&remote, &response).await, format!("{number}\n"));
    }
    assert!(marks.runs("second").is_empty(), "there is one GPU");
    marks.go("first");
    first.ended().await;
    marks.begun("second", 1).await;
    marks.go("second");
    assert_eq!(second.stdout(&remote).await, "second\n");
}

#[tokio::test]
async fn what_needs_all_gpus_is_not_starved_by_those_that_need_one() {
    let builder = acting::builder().env("FOREBAY_EXECUTOR_SLOTS", "4");
    let builder = builder.env("FOREBAY_EXECUTOR_RESOURCES", r#"{"gpu":2}"#);
    let farm = builder.env("FOREBAY_CUSTOM_RESOURCE_PATIENCE_SECONDS", "1").start().await;
    let (remote, marks) = (acting::remote(&farm).await, Marks::of(&farm));
    let one = async |number: usize| {
        let script = format!("echo {number} >> {}/ones; sleep 0.3", marks.path().display());
        let action = upload_asking(&remote, &script, &[(GPU, "1")]).await;
        Begun::new(&remote, &action).await
    };
    // One of two slots is always busy: each action starts when the previous one is half done.
    let mut waiting = std::collections::VecDeque::new();
    for number in 0..4 {
        waiting.push_back(one(number).await);
    }
    let both = upload_asking(&remote, &marks.script("both"), &[(GPU, "2")]).await;
    let both = Begun::new(&remote, &both).await;
    let flow = async {
        let mut number = 4;
        loop {
            waiting.push_back(one(number).await);
            number += 1;
            // The actions queued after it end only after it.
            tokio::select! {
                () = marks.begun("both", 1) => return,
                _ = waiting.pop_front().unwrap().ended() => {}
            }
        }
    };
    tokio::time::timeout(SOON, flow).await.expect("resources are reserved for an action that needs both");
    marks.go("both");
    assert_eq!(both.stdout(&remote).await, "both\n");
    for one in waiting {
        one.ended().await;
    }
}

#[tokio::test]
async fn what_no_executor_can_ever_have_is_refused_at_once() {
    let builder = acting::builder().env("FOREBAY_EXECUTOR_SLOTS", "4");
    let farm = builder.env("FOREBAY_EXECUTOR_RESOURCES", r#"{"gpu":2}"#).start().await;
    let remote = acting::remote(&farm).await;
    for (name, value, says) in
        [(GPU, "3", "gpu"), ("resources:licence", "1", "licence"), ("EstimatedCPU", "5", "at most: 4")]
    {
        let action = upload_asking(&remote, "true", &[(name, value)]).await;
        let error = remote.execute(&action, false, 0, |_, _| {}).await.unwrap_err();
        let RemoteError::Refused { status, .. } = error else { panic!("{error:?}") };
        assert_eq!(status.code(), tonic::Code::FailedPrecondition, "{status:?}");
        assert!(status.message().contains(says), "{says}: {}", status.message());
    }
    let action = upload_asking(&remote, "true", &[("EstimatedCPU", "many")]).await;
    let error = remote.execute(&action, false, 0, |_, _| {}).await.unwrap_err();
    let RemoteError::Refused { status, .. } = error else { panic!("{error:?}") };
    assert_eq!(status.code(), tonic::Code::InvalidArgument, "{status:?}");
}

#[tokio::test]
async fn what_wants_its_executor_for_itself_has_it() {
    let farm = acting::builder().env("FOREBAY_EXECUTOR_SLOTS", "4").start().await;
    let (remote, marks) = (acting::remote(&farm).await, Marks::of(&farm));
    let plain = async |name: &str| {
        let action = acting::upload(&remote, &marks.script(name)).await;
        Begun::new(&remote, &action).await
    };
    let before = plain("before").await;
    marks.begun("before", 1).await;
    let alone = upload_asking(&remote, &marks.script("alone"), &[("exclusive", "true")]).await;
    let alone = Begun::new(&remote, &alone).await;
    tokio::time::sleep(NOTHING_MORE).await;
    assert!(marks.runs("alone").is_empty(), "another one runs there");
    marks.go("before");
    before.ended().await;
    marks.begun("alone", 1).await;
    let after = plain("after").await;
    tokio::time::sleep(NOTHING_MORE).await;
    assert!(marks.runs("after").is_empty(), "something started beside it");
    marks.go("alone");
    assert_eq!(alone.stdout(&remote).await, "alone\n");
    marks.begun("after", 1).await;
    marks.go("after");
    after.ended().await;
}

#[tokio::test]
async fn what_must_be_alone_is_alone_on_the_machine() {
    let farm = Farm::builder()
        .with_actions()
        .env("FOREBAY_SANDBOX", "none")
        .workspaces(1)
        .lease_ttl(10)
        .start()
        .await;
    let (remote, marks) = (acting::remote(&farm).await, Marks::of(&farm));
    let _other = farm.machine("other", &[("FOREBAY_EXECUTOR_SLOTS", "4")]).await;
    let plain = async |name: &str| {
        let action = acting::upload(&remote, &marks.script(name)).await;
        Begun::new(&remote, &action).await
    };
    let build = farm.submit("g", script(&marks.script("build"))).await;
    marks.begun("build", 1).await;
    let alone = upload_asking(&remote, &marks.script("alone"), &[("exclusive", "true")]).await;
    let alone = Begun::new(&remote, &alone).await;
    tokio::time::sleep(NOTHING_MORE).await;
    assert!(marks.runs("alone").is_empty(), "a build runs on the machine");
    marks.go("build");
    check::ended_as(&farm, &build, Outcome::Succeeded).await;
    marks.begun("alone", 1).await;
    let next = farm.submit("g", script(&marks.script("next"))).await;
    let after = plain("after").await;
    tokio::time::sleep(NOTHING_MORE).await;
    assert!(marks.runs("after").is_empty() && marks.runs("next").is_empty(), "something started beside it");
    marks.go("alone");
    assert_eq!(alone.stdout(&remote).await, "alone\n");
    for name in ["after", "next"] {
        marks.begun(name, 1).await;
        marks.go(name);
    }
    after.ended().await;
    check::ended_as(&farm, &next, Outcome::Succeeded).await;
}

#[tokio::test]
async fn whoever_joins_takes_what_waits_for_others() {
    let farm = acting::builder().without("executor").env("FOREBAY_EXECUTOR_SLOTS", "1").start().await;
    let first = farm.machine("first", &[]).await;
    let (remote, marks) = (acting::remote(&farm).await, Marks::of(&farm));
    let mut begun = Vec::new();
    for number in 0..6 {
        let action = acting::upload(&remote, &marks.script(&format!("a{number}"))).await;
        begun.push(Begun::new(&remote, &action).await);
    }
    marks.begun("a0", 1).await;
    // All actions were reserved on the executor that is full.
    let second = farm.machine("second", &[("FOREBAY_EXECUTOR_SLOTS", "4")]).await;
    for number in 1..5 {
        let name = format!("a{number}");
        marks.begun(&name, 1).await;
        assert!(second.has(&marks.runs(&name)[0]), "{name}");
    }
    assert!(first.has(&marks.runs("a0")[0]) && marks.runs("a5").is_empty());
    (0..6).for_each(|number| marks.go(&format!("a{number}")));
    for one in begun {
        one.ended().await;
    }
}

#[tokio::test]
async fn a_small_executor_finds_what_fits_it_behind_much_that_does_not() {
    let farm = acting::builder().without("executor").start().await;
    let large = farm.machine("large", &[("FOREBAY_EXECUTOR_SLOTS", "8")]).await;
    let (remote, marks) = (acting::remote(&farm).await, Marks::of(&farm));
    let mut begun = Vec::new();
    for number in 0..100 {
        let script = marks.script(&format!("large-{number}"));
        let action = upload_asking(&remote, &script, &[("EstimatedCPU", "8")]).await;
        begun.push(Begun::new(&remote, &action).await);
    }
    marks.begun("large-0", 1).await;
    let action = upload_asking(&remote, &marks.script("small"), &[("EstimatedCPU", "1")]).await;
    let last = Begun::new(&remote, &action).await;
    let small = farm.machine("small", &[("FOREBAY_EXECUTOR_SLOTS", "1")]).await;
    marks.begun("small", 1).await;
    assert!(small.has(&marks.runs("small")[0]));
    marks.go("small");
    assert_eq!(last.stdout(&remote).await, "small\n");
    drop(large);
}

#[tokio::test]
async fn an_executor_that_hangs_delays_nobody() {
    let farm = acting::builder().without("executor").lease_ttl(600).start().await;
    let mut machines = Vec::new();
    for name in ["one", "two", "three"] {
        machines.push(farm.machine(name, &[]).await);
    }
    let remote = acting::remote(&farm).await;
    machines[1].pause();
    // What it was granted and does not confirm is run by the others.
    for number in 0..30 {
        let action = acting::upload(&remote, &format!("echo {number}")).await;
        let response = acting::executed(&remote, action).await;
        assert_eq!(acting::stdout(&remote, &response).await, format!("{number}\n"));
    }
    machines[1].resume();
}

#[tokio::test]
async fn one_that_drains_finishes_what_runs_and_the_rest_runs_elsewhere() {
    let builder = acting::builder().without("executor").env("FOREBAY_EXECUTOR_SLOTS", "1");
    let farm = builder.env("FOREBAY_DRAIN_SECONDS", "60").start().await;
    let mut leaves = farm.machine("leaves", &[]).await;
    let (remote, marks) = (acting::remote(&farm).await, Marks::of(&farm));
    let mut begun = Vec::new();
    for name in ["a", "b", "c", "d"] {
        let action = acting::upload(&remote, &marks.script(name)).await;
        begun.push(Begun::new(&remote, &action).await);
    }
    marks.begun("a", 1).await;
    leaves.term();
    let stays = farm.machine("stays", &[]).await;
    for name in ["b", "c", "d"] {
        marks.begun(name, 1).await;
        assert!(stays.has(&marks.runs(name)[0]), "{name}");
        marks.go(name);
    }
    assert!(leaves.is_alive(), "it has one to finish");
    marks.go("a");
    let status = leaves.wait_exit(SOON).await;
    assert!(status.success(), "{status}\n{}", leaves.log_tail());
    for one in begun {
        let name = one.name.clone();
        one.ended().await;
        let records = history_of(&farm, &name).await;
        assert_eq!(records.last().unwrap().attempt.0, 1, "nothing was lost: {records:#?}");
        assert!(phases(&records).iter().all(|phase| *phase != "copy ended"), "{records:#?}");
    }
    assert!(["a", "b", "c", "d"].iter().all(|name| marks.runs(name).len() == 1));
}

#[tokio::test]
async fn actions_go_where_their_like_ran_before() {
    let builder = acting::builder().without("executor").env("FOREBAY_EXECUTOR_SLOTS", "2");
    let farm = builder.start().await;
    let mut machines = Vec::new();
    for name in ["one", "two", "three", "four"] {
        machines.push(farm.machine(name, &[]).await);
    }
    let (remote, marks) = (acting::remote(&farm).await, Marks::of(&farm));
    // The first output identifies similar actions; the command changes each time.
    let run = async |round: usize| {
        let script = format!(": {round}; echo $PWD >> {}/it.runs; echo kept > kept", marks.path().display());
        let (command, root) = (acting::sh(&script), SHA256.empty());
        let action = acting::upload_as(&remote, &command, asking(&[]), &root).await;
        acting::stdout(&remote, &acting::executed(&remote, action).await).await;
    };
    for round in 0..12 {
        run(round).await;
    }
    let holders: Vec<_> = (0..12).map(|round| marks.holder("it", round, &machines)).collect();
    let there = holders.windows(2).filter(|pair| pair[0] == pair[1]).count();
    // A random placement would use the same executor once in four times. The scheduler may learn of the first action only
    // after the second one was placed.
    assert!(there >= 9, "{there} of 11 ran where the one before did: {:?}", marks.runs("it"));
}
