//! Every accepted action ends with exactly one result while all processes are killed repeatedly.

use std::collections::BTreeSet;

use chaos_tests::{
    ActionMutation, Random, action_history,
    actions::{self, ActionPlan},
};
use proptest::prelude::*;

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
    let history = &aftermath.history;
    assert!(history.executions.len() < history.answers.len(), "no client joined an execution");
    assert!(
        history.executions.values().flatten().any(|record| record.so_far.hedges > 0),
        "no copy was started"
    );
    // The same history with one mutation: this proves that the rules would have detected it.
    let mut random = Random::new(plan.seed);
    for mutation in ActionMutation::ALL {
        if let Some(broken) = mutation.apply(history, &mut random) {
            assert_eq!(rules(&broken), BTreeSet::from([mutation.rule()]), "{mutation:?}");
        }
    }
    drop(farm);
}

fn rules(history: &chaos_tests::ActionHistory) -> BTreeSet<chaos_tests::actions::ActionRule> {
    history.check().into_iter().map(|broken| broken.rule).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_good_history_of_actions_has_no_findings(seed: u64) {
        prop_assert_eq!(action_history(seed).check(), []);
    }

    #[test]
    fn each_mutation_of_actions_breaks_exactly_its_rule(seed: u64) {
        let history = action_history(seed);
        let mut random = Random::new(seed ^ 1);
        for mutation in ActionMutation::ALL {
            let broken = mutation.apply(&history, &mut random);
            prop_assert!(broken.is_some(), "nothing to break by {:?}", mutation);
            let found = broken.unwrap().check();
            let rules: BTreeSet<_> = found.iter().map(|broken| broken.rule).collect();
            prop_assert_eq!(rules, BTreeSet::from([mutation.rule()]), "{:?}: {:?}", mutation, found);
        }
    }
}
