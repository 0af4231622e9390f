//! Measured usage of similar actions decides how densely they are packed; requested resources decide where they fit.

use std::time::Duration;

use farm::{Builder, Farm, SOON};
use model::BlobDigest;
use reapi::execution::Action;
use remote::Remote;

use crate::{
    acting::{self, SHA256},
    check::until,
    marks::{Begun, Marks, asking},
};

/// Long enough to detect an action that must not start.
const NOTHING_MORE: Duration = Duration::from_millis(1500);
const TOGETHER: usize = 6;

/// Configures an executor with room for two actions by their requests, and for eight by their usage.
fn builder() -> Builder {
    let builder = acting::builder().env("FOREBAY_EXECUTOR_SLOTS", "8");
    builder.env("FOREBAY_EXECUTOR_MEMORY_BYTES", "1000000000")
}

struct Kind {
    remote: Remote,
    marks: Marks,
}

impl Kind {
    async fn of(farm: &Farm) -> Self {
        Self { remote: acting::remote(farm).await, marks: Marks::of(farm) }
    }

    /// Creates an action with the same command as the others, which requests much, uses little, and
    /// waits only on request.
    async fn action(&self, number: u8) -> BlobDigest {
        let folder = self.marks.path().display();
        let script = format!(
            "echo $PWD >> {folder}/it.runs; while [ -e {folder}/wait ]; do sleep 0.02; done; echo out"
        );
        let action = Action { salt: vec![number], ..asking(&[("EstimatedMemory", "450e6")]) };
        acting::upload_as(&self.remote, &acting::sh(&script), action, &SHA256.empty()).await
    }

    /// Returns how many of several actions run at a time.
    async fn together(&self, from: u8, wanted: usize) -> usize {
        let before = self.marks.runs("it").len();
        std::fs::write(self.marks.path().join("wait"), "").unwrap();
        let mut begun = Vec::new();
        for number in 0..TOGETHER {
            let action = self.action(from + u8::try_from(number).unwrap()).await;
            begun.push(Begun::new(&self.remote, &action).await);
        }
        let running = || self.marks.runs("it").len() - before;
        until("they run", SOON, || running() >= wanted).await;
        tokio::time::sleep(NOTHING_MORE).await;
        let count = running();
        std::fs::remove_file(self.marks.path().join("wait")).unwrap();
        for one in begun {
            assert_eq!(one.stdout(&self.remote).await, "out\n");
        }
        count
    }

    /// Runs some actions, one after the other.
    async fn learn(&self) {
        for number in 100..140 {
            let action = self.action(number).await;
            let response = acting::executed(&self.remote, action).await;
            assert_eq!(acting::stdout(&self.remote, &response).await, "out\n");
        }
    }
}

#[tokio::test]
async fn actions_are_packed_by_what_their_kind_was_seen_to_use() {
    let farm = builder().start().await;
    let kind = Kind::of(&farm).await;
    assert_eq!(kind.together(0, 2).await, 2, "as many as fit by their requests");
    kind.learn().await;
    assert_eq!(kind.together(10, TOGETHER).await, TOGETHER);
    // Another scheduler has the usage too.
    farm.replace("scheduler", &[]).await;
    assert_eq!(kind.together(20, TOGETHER).await, TOGETHER);
}

#[tokio::test]
async fn without_sizing_actions_are_packed_by_what_they_ask_for() {
    let farm = builder().env("FOREBAY_ACTION_SIZING", "false").start().await;
    let kind = Kind::of(&farm).await;
    kind.learn().await;
    assert_eq!(kind.together(0, 2).await, 2);
}

#[tokio::test]
async fn what_a_command_used_is_in_the_log() {
    let farm = builder().start().await;
    let remote = acting::remote(&farm).await;
    // About 100 MB, for half a second.
    let script = "(head -c 100000000 /dev/zero; sleep 0.5) | tail > /dev/null";
    let action = acting::upload(&remote, script).await;
    acting::executed(&remote, action).await;
    let record = acting::only_end(&farm).await;
    let measured = record.outcome().unwrap().measured.unwrap();
    assert!((500..20_000).contains(&measured.wall_ms), "{measured:?}");
    assert!((90_000_000..400_000_000).contains(&measured.memory_bytes), "{measured:?}");
    assert!(measured.cpu_ms > 0 && measured.cpu_ms < 20_000, "{measured:?}");
}
