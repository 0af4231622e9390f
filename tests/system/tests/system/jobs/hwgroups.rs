//! Limits of tasks that depend on the hardware group of the executor.

use farm::Farm;
use model::{Outcome, TaskStatus};
use serde_json::{Value, json};

use super::{builder, job, request, run, sh, start};

/// Starts a farm with an executor of group `g1` in pool `one`, and one of group `g2` in pool `two`.
async fn two_groups() -> Farm {
    let farm = start(builder().without("executor")).await;
    for (pool, group) in [("one", "g1"), ("two", "g2")] {
        let properties = format!(r#"{{"hwgroup": ["{group}"]}}"#);
        let env = [("FOREBAY_POOL", pool), ("FOREBAY_POOL_PROPERTIES", properties.as_str())];
        farm.keep(farm.spawn_with_env("executor", &env).await);
    }
    farm
}

/// A task that runs in `platform`. It may take 0.3 s in group `g1`, and print 1000 bytes in group `g2`.
fn task(id: &str, script: &str, platform: Value) -> Value {
    let mut task = sh(id, script);
    task["platform"] = platform;
    task["limits"] = json!({"wall_ms": 60_000, "output_bytes": 100_000});
    task["limits_by_hwgroup"] = json!({"g1": {"wall_ms": 300}, "g2": {"output_bytes": 1000}});
    task
}

#[tokio::test]
async fn a_task_is_limited_as_the_group_of_its_executor_demands() {
    let farm = two_groups().await;
    let (long, loud) = ("sleep 1", "head -c 50000 /dev/zero");
    let either = |pool: &str| json!({"hwgroup": "g1|g2", "Pool": pool});
    let mut known = task("loud-known", loud, json!({"hwgroup": "g2"}));
    known["limits_by_hwgroup"] = json!({"g2": {"output_bytes": 1000}});
    let tasks = json!([
        task("long-one", long, either("one")),
        task("loud-one", loud, either("one")),
        task("long-two", long, either("two")),
        task("loud-two", loud, either("two")),
        task("long-unasked", long, json!({"Pool": "one"})),
        known,
    ]);
    let ended = run(&farm, request(job(&tasks))).await;
    assert_eq!(ended.outcome(), Outcome::Failed);
    let over = ended.ids(|report| report.status == TaskStatus::OverLimit);
    assert_eq!(over, ["long-one", "loud-two", "long-unasked", "loud-known"], "{:#?}", ended.reports);
    assert_eq!(ended.job().succeeded, 2, "{:#?}", ended.job());
    assert!(ended.reason("long-one").contains("0.3 s"), "{}", ended.reason("long-one"));
    assert!(ended.reason("loud-two").contains("1000"), "{}", ended.reason("loud-two"));
}
