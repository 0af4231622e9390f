//! Schedulers that freeze while others work.

use farm::SOON;
use futures::{StreamExt as _, stream::FuturesUnordered};

use crate::acting;

/// Number of actions of each round.
const ACTIONS: usize = 60;

#[tokio::test(flavor = "multi_thread")]
async fn a_scheduler_that_freezes_withholds_nothing_from_the_others() {
    let farm = acting::builder().with("scheduler").env("FOREBAY_EXECUTOR_SLOTS", "4").start().await;
    let remote = acting::remote(&farm).await;
    // One of the two applies the records first; the other one follows.
    for round in 0..2 {
        let frozen = farm.take("scheduler");
        let mut running = FuturesUnordered::new();
        for number in 0..ACTIONS {
            let action = acting::upload(&remote, &format!("echo {round} {number}")).await;
            running.push(acting::executed(&remote, action));
        }
        running.next().await.unwrap();
        frozen.pause();
        let rest = tokio::time::timeout(SOON, running.count()).await;
        frozen.resume();
        assert_eq!(rest.unwrap_or_default(), ACTIONS - 1, "they end while a scheduler is frozen");
        // The other one is the first in the list now.
        farm.keep(frozen);
    }
}
