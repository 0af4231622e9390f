//! smoke

use std::time::Duration;

use farm::Farm;
use model::{Outcome, Priority};

#[tokio::test]
async fn a_build_runs() {
    let began = std::time::Instant::now();
    let farm = Farm::all().await;
    eprintln!("up {:?}", began.elapsed());
    let effects = farm.effects();
    let key = farm.create("g", Priority::Interactive, &effects.command("echo hi")).await;
    let record = farm.wait_finished(&key, Duration::from_secs(10)).await;
    eprintln!("done {:?}", began.elapsed());
    assert_eq!(record.result().unwrap().outcome, Outcome::Succeeded);
    assert_eq!(farm.history(&key).await.len(), 3);
    assert_eq!(effects.of(key.id).len(), 2);
    effects.assert_sound();
    let out = farm.cli(&["get", &key.id.to_string()]).await;
    eprintln!("{out:?}");
    drop(farm);
    eprintln!("gone {:?}", began.elapsed());
}
