//! The cost of an executor's death, of its standstill, and of a network cut.

use std::time::Duration;

use farm::{Builder, Cut, Farm, Link, Machine, SOON};
use model::{ExecutionPhase, ExecutionRecord, ExecutorHeartbeat};
use remote::Remote;

use crate::{
    acting,
    check::until,
    marks::{Begun, Marks, history_of, only_history, phases},
};

const LEASE: Duration = Duration::from_secs(3);
/// Time to handle an expired lease: nats-server checks once a second, the loss is written, and another run starts.
const NOTICED: Duration = Duration::from_secs(4);
const CUT: Duration = Duration::from_secs(5);

fn builder(lease: Duration) -> Builder {
    acting::builder().without("executor").lease_ttl(lease.as_secs())
}

struct Two {
    farm: Farm,
    remote: Remote,
    marks: Marks,
    machines: Vec<Machine>,
}

impl Two {
    async fn start() -> Self {
        let farm = builder(LEASE).start().await;
        let machines = vec![farm.machine("one", &[]).await, farm.machine("two", &[]).await];
        let (remote, marks) = (acting::remote(&farm).await, Marks::of(&farm));
        Self { farm, remote, marks, machines }
    }

    /// Injects a fault into the machine of a running action: the action must run on the other machine within a lease.
    async fn lose(&self, what: impl Fn(&Machine)) -> (Begun, usize) {
        let action = acting::upload(&self.remote, &self.marks.script("it")).await;
        let begun = Begun::new(&self.remote, &action).await;
        self.marks.begun("it", 1).await;
        let holder = self.marks.holder("it", 0, &self.machines);
        what(&self.machines[holder]);
        let again = || self.marks.runs("it").len() == 2;
        until("it runs elsewhere", LEASE + NOTICED, again).await;
        assert_ne!(self.marks.holder("it", 1, &self.machines), holder);
        (begun, holder)
    }
}

/// Asserts that the action was requeued once, for a lost executor.
fn requeued_once(records: &[ExecutionRecord]) {
    assert_eq!(phases(records), ["accepted", "requeued", "finished"], "{records:#?}");
    let ExecutionPhase::Requeued { reason, executor } = &records[1].phase else { panic!("{records:#?}") };
    assert!(executor.is_some() && !reason.is_empty(), "{records:#?}");
    assert_eq!((records[1].attempt.0, records[2].attempt.0), (2, 2), "{records:#?}");
    assert_eq!(records[1].so_far.avoid.as_slice(), executor.as_slice(), "{records:#?}");
}

#[tokio::test]
async fn a_dead_executor_costs_its_lease_at_most() {
    let two = Two::start().await;
    let (begun, _) = two.lose(|machine| machine.kill9()).await;
    two.marks.go("it");
    assert_eq!(begun.stdout(&two.remote).await, "it\n");
    requeued_once(&only_history(&two.farm).await);
}

#[tokio::test]
async fn one_that_stands_still_costs_its_lease_at_most_and_kills_what_it_had_when_it_goes_on() {
    let two = Two::start().await;
    let (begun, holder) = two.lose(|machine| machine.pause()).await;
    two.machines[holder].resume();
    let dead = || two.marks.alive_on(&two.machines[holder]).is_empty();
    until("the replaced run is killed", SOON, dead).await;
    two.marks.go("it");
    assert_eq!(begun.stdout(&two.remote).await, "it\n");
    requeued_once(&only_history(&two.farm).await);
    // The machine accepts actions again: both of them can be full.
    let names = ["a", "b", "c", "d"];
    let mut more = Vec::new();
    for name in names {
        let action = acting::upload(&two.remote, &two.marks.script(name)).await;
        more.push(Begun::new(&two.remote, &action).await);
    }
    for name in names {
        two.marks.begun(name, 1).await;
    }
    for name in names {
        two.marks.go(name);
    }
    for one in more {
        one.ended().await;
    }
}

/// Starts a farm whose only executor has a connection that can be cut.
async fn behind_a_link(lease: Duration) -> (Farm, Link, Machine, Remote, Marks) {
    let farm = builder(lease).start().await;
    let link = farm.link().await;
    let machine = farm.machine_behind(&link, "far", &[]).await;
    let (remote, marks) = (acting::remote(&farm).await, Marks::of(&farm));
    (farm, link, machine, remote, marks)
}

async fn a_short_cut_costs_nothing(how: Cut) {
    let (farm, link, _machine, remote, marks) = behind_a_link(Duration::from_secs(15)).await;
    // The executor that could run it is not lost.
    let _other = farm.machine("near", &[("FOREBAY_EXECUTOR_SLOTS", "1")]).await;
    let mut heartbeats = farm.bus().listen::<ExecutorHeartbeat>(&()).await.unwrap();
    let mut begun = Vec::new();
    let names = ["a", "b", "c"];
    for name in names {
        let action = acting::upload(&remote, &marks.script(name)).await;
        begun.push((name, Begun::new(&remote, &action).await));
    }
    for name in names {
        marks.begun(name, 1).await;
    }
    // What it has not confirmed runs elsewhere.
    let confirms = async { while heartbeats.next().await.unwrap().content.running.len() < 2 {} };
    tokio::time::timeout(SOON, confirms).await.expect("it confirms its two actions");
    link.cut(how);
    // One action ends while the executor is cut off, the others later.
    let held: Vec<&str> =
        names.into_iter().filter(|name| marks.runs(name)[0].contains("/machines/far/")).collect();
    assert_eq!(held.len(), 2, "three slots, and two of them there");
    marks.go(held[0]);
    tokio::time::sleep(CUT).await;
    link.restore();
    for name in names {
        marks.go(name);
    }
    for (name, begun) in begun {
        assert_eq!(begun.stdout(&remote).await, format!("{name}\n"));
        assert_eq!(marks.runs(name).len(), 1, "it ran again");
    }
    for (key, records) in acting::histories(&farm).await {
        assert_eq!(phases(&records), ["accepted", "finished"], "{key}: {records:#?}");
        assert_eq!(records[1].attempt.0, 1);
    }
    // The executor accepts actions again immediately.
    let action = acting::upload(&remote, &marks.script("next")).await;
    let mut full = vec![Begun::new(&remote, &action).await];
    for number in 0..2 {
        let action = acting::upload(&remote, &marks.script(&format!("full-{number}"))).await;
        full.push(Begun::new(&remote, &action).await);
    }
    for name in ["next", "full-0", "full-1"] {
        marks.begun(name, 1).await;
        marks.go(name);
    }
    for one in full {
        one.ended().await;
    }
}

#[tokio::test]
async fn a_silence_of_five_seconds_costs_nothing() {
    a_short_cut_costs_nothing(Cut::Silent).await;
}

#[tokio::test]
async fn a_connection_that_is_broken_for_five_seconds_costs_nothing() {
    a_short_cut_costs_nothing(Cut::Broken).await;
}

#[tokio::test]
async fn one_that_is_cut_off_for_longer_than_its_lease_kills_what_it_has_before_others_begin() {
    let (farm, link, machine, remote, marks) = behind_a_link(LEASE).await;
    let action = acting::upload(&remote, &marks.script("it")).await;
    let begun = Begun::new(&remote, &action).await;
    let name = begun.name.clone();
    marks.begun("it", 1).await;
    let near = farm.machine("near", &[]).await;
    link.cut(Cut::Silent);
    // The executor must use its own clock, because it is cut off: when another run begins, no process of
    // the first is alive.
    until("it runs elsewhere", LEASE + NOTICED, || marks.runs("it").len() == 2).await;
    assert!(near.has(&marks.runs("it")[1]));
    assert_eq!(marks.alive_on(&machine), [0_u32; 0], "two runs at once");
    marks.go("it");
    assert_eq!(begun.stdout(&remote).await, "it\n");
    link.restore();
    // It writes nothing about the first run later: the next action shows that it is back.
    drop(near);
    let next = acting::upload(&remote, "echo next").await;
    let response = acting::executed(&remote, next).await;
    assert_eq!(acting::stdout(&remote, &response).await, "next\n");
    requeued_once(&history_of(&farm, &name).await);
}

#[tokio::test]
async fn attempts_are_capped_and_the_last_reason_is_told() {
    let farm = builder(LEASE).env("FOREBAY_ACTION_ATTEMPTS", "2").start().await;
    let (remote, marks) = (acting::remote(&farm).await, Marks::of(&farm));
    let first = farm.machine("one", &[]).await;
    let action = acting::upload(&remote, &marks.script("it")).await;
    let begun = Begun::new(&remote, &action).await;
    marks.begun("it", 1).await;
    drop(first);
    let second = farm.machine("two", &[]).await;
    marks.begun("it", 2).await;
    drop(second);
    let third = farm.machine("three", &[]).await;
    let status = begun.ended().await.status.unwrap();
    assert_eq!(status.code, i32::from(tonic::Code::Unavailable), "{status:?}");
    assert!(status.message.contains("2 attempts"), "{}", status.message);
    assert_eq!(marks.runs("it").len(), 2);
    let records = only_history(&farm).await;
    assert_eq!(phases(&records), ["accepted", "requeued", "finished"], "{records:#?}");
    drop(third);
}

#[tokio::test]
async fn a_command_that_fails_is_not_tried_elsewhere() {
    let two = Two::start().await;
    let script = format!("echo $PWD >> {}/it.runs; exit 3", two.marks.path().display());
    let action = acting::upload(&two.remote, &script).await;
    let response = acting::executed(&two.remote, action).await;
    assert_eq!((response.result.unwrap().exit_code, two.marks.runs("it").len()), (3, 1));
    assert_eq!(phases(&only_history(&two.farm).await), ["accepted", "finished"]);
}
