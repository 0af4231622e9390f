//! A farm keeps its promises while all its processes are killed repeatedly.

use std::collections::BTreeSet;

use chaos_tests::{
    Random, check,
    mutate::Mutation,
    storm::{self, Plan},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chaos_breaks_no_promise() {
    let plan = Plan::from_env();
    eprintln!("chaos with seed {} ({} builds)", plan.seed, plan.builds);
    let (farm, aftermath) = storm::run(&plan).await;
    let verdict = check(&aftermath.history);
    eprintln!("{aftermath}\n{}", verdict.counts);
    if std::env::var_os("FOREBAY_CHAOS_TELL").is_some() {
        eprintln!("{}", aftermath.worst(&verdict));
    }
    let report = verdict.report(&aftermath.history);
    let faults = aftermath.faults.join("\n");
    assert!(verdict.findings.is_empty() && faults.is_empty(), "seed {}\n{faults}\n{report}", plan.seed);
    // The same history with one mutation: this proves that the rules would have detected it.
    let mut random = Random::new(plan.seed);
    for mutation in Mutation::ALL {
        let broken = mutation.apply(&aftermath.history, &mut random);
        let broken = broken.unwrap_or_else(|| panic!("the history holds nothing to break by {mutation:?}"));
        assert_eq!(check(&broken).broken(), BTreeSet::from([mutation.rule()]), "{mutation:?}");
    }
    drop(farm);
}
