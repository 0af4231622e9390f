//! Every accepted action ends in exactly one result while everything is killed.

#![expect(clippy::expect_used, reason = "a test fails by panicking")]

use chaos_tests::{
    ActionHistory, Broken,
    actions::{self, ActionPlan},
};
use model::ExecutionPhase;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chaos_loses_no_action() {
    let plan = ActionPlan::from_env();
    eprintln!("chaos of {} actions with seed {}", plan.actions, plan.seed);
    let (farm, aftermath) = actions::run(&plan).await;
    eprintln!("{aftermath}");
    let broken = aftermath.history.check();
    let faults = aftermath.faults.join("\n");
    assert!(broken.is_empty() && faults.is_empty(), "seed {}\n{faults}\n{broken:#?}", plan.seed);
    assert!(aftermath.kills.iter().map(|(_, count)| count).sum::<usize>() > 5, "nothing was killed");
    would_be_seen(&aftermath.history);
    drop(farm);
}

/// The same history with one thing broken: the check sees it.
fn would_be_seen(history: &ActionHistory) {
    let key = history.executions.keys().next().expect("an execution").clone();
    let with = |change: &dyn Fn(&mut ActionHistory)| {
        let mut broken = history.clone();
        change(&mut broken);
        broken.check()
    };
    let lost = with(&|history| drop(history.executions.get_mut(&key).expect("it is there").pop()));
    assert!(lost.contains(&Broken::Unfinished(key.clone())), "{lost:?}");
    let twice = with(&|history| {
        let records = history.executions.get_mut(&key).expect("it is there");
        records.extend(records.last().cloned());
    });
    assert_eq!(twice, [Broken::AfterTheEnd(key.clone())]);
    let never = with(&|history| drop(history.executions.remove(&key)));
    assert!(never.iter().any(|broken| matches!(broken, Broken::Unknown(_))), "{never:?}");
    let jumped = with(&|history| {
        let records = history.executions.get_mut(&key).expect("it is there");
        let first = records.first().cloned().expect("a record");
        let phase = ExecutionPhase::Requeued { reason: "none".to_owned() };
        records.insert(1, model::ExecutionRecord { phase, ..first });
    });
    assert!(jumped.contains(&Broken::WrongAttempt(key.clone())), "{jumped:?}");
    let wrong = with(&|history| history.answers.first_mut().expect("an answer").got = Ok("other".to_owned()));
    assert!(matches!(wrong.as_slice(), [Broken::WrongAnswer(_)]), "{wrong:?}");
}
