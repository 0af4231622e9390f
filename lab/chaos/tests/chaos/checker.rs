//! The checker finds nothing in good histories, and exactly the mutation in broken ones.

use std::collections::BTreeSet;

use chaos_tests::{Random, check, mutate::Mutation, synthetic};
use model::State;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_good_history_has_no_findings(seed: u64) {
        let history = synthetic::history(seed);
        let verdict = check(&history);
        prop_assert_eq!(verdict.report(&history), "");
        prop_assert_eq!(verdict.counts.builds, 80);
        prop_assert_eq!(verdict.counts.excused + verdict.counts.unexcused + verdict.counts.out_of_turn, 0);
    }

    #[test]
    fn each_mutation_breaks_exactly_its_rule(seed: u64) {
        let history = synthetic::history(seed);
        let mut random = Random::new(seed ^ 1);
        for mutation in Mutation::ALL {
            // A few of 100,000 histories have no place for some mutation: no worker died, for example.
            let Some(broken) = mutation.apply(&history, &mut random) else {
                return Err(TestCaseError::reject(format!("nothing to break by {mutation:?}")));
            };
            let verdict = check(&broken);
            prop_assert_eq!(verdict.broken(), BTreeSet::from([mutation.rule()]), "{:?}: {:?}", mutation, verdict.findings);
        }
    }
}

#[test]
fn good_histories_hold_what_the_rules_are_about() {
    let history = synthetic::history(1);
    let requeued = history.events.iter().filter(|event| event.is(State::Enqueued)).count();
    assert!(requeued > 80, "some builds are requeued");
    assert!(history.runs.iter().any(|run| run.end_us.is_none()));
    assert!(!history.kills.is_empty());
}
