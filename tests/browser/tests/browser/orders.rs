//! What people order on pages.

use browser_tests::{Browser, Look};
use farm::{Farm, SOON};
use model::{Outcome, State, WorkerStatus};

use crate::sample::{Sample, script};

#[tokio::test]
async fn a_queued_build_is_cancelled_and_submitted_again() {
    let farm = Farm::builder().without("worker").start().await;
    let key = farm.submit("core", script("echo again")).await;
    farm.wait_until(&key, SOON, |record| record.state() == State::Enqueued).await;
    let browser = Browser::start(&farm.http_url(), Look::default()).await;
    browser.open(&format!("/builds/{key}")).await;
    browser.click("Cancel this build").await;
    browser.click("Cancel the build").await;
    browser.shows("cancelled").await;
    let ended = farm.wait_finished(&key, SOON).await;
    assert_eq!(ended.result().map(|result| result.outcome), Some(Outcome::Cancelled));
    let worker = farm.spawn("worker").await;
    browser.click("Run it again").await;
    browser.click("Submit it again").await;
    browser.shows("✓ succeeded").await;
    assert!(!browser.current_url().await.path().contains(&key.id.to_string()), "a new id");
    browser.quit().await;
    drop(worker);
}

#[tokio::test]
async fn outputs_are_browsed_and_builds_compared() {
    let sample = Sample::start().await;
    let browser = Browser::start(&sample.farm.http_url(), Look::default()).await;
    browser.open(&format!("/builds/{}", sample.with_outputs)).await;
    browser.click("a.txt").await;
    browser.shows("kept").await;
    browser.open(&format!("/builds/{}", sample.failed)).await;
    browser.click("Compare it with another build").await;
    browser.click(&sample.fixed.id.to_string()).await;
    browser.shows("Compare two builds").await;
    browser.shows("exit 2").await;
    browser.shows("login").await;
    browser.quit().await;
}

#[tokio::test]
async fn an_action_is_run_again_and_its_inputs_are_browsed() {
    let sample = Sample::start().await;
    let browser = Browser::start(&sample.farm.http_url(), Look::default()).await;
    browser.open(&format!("/builds/{}", sample.job)).await;
    browser.click("use").await;
    browser.shows("cat x > y").await;
    browser.click("Run it again").await;
    browser.click_on("form[action^='/action-again/'] button").await;
    browser.shows("Executions").await;
    browser.click("x").await;
    browser.shows("Download").await;
    let end = tokio::time::Instant::now() + SOON;
    let request = model::ActionsRequest { build: Some(sample.job.id), ..model::ActionsRequest::default() };
    let actions = sample.farm.client().actions(&request).await.unwrap().actions;
    let digest = actions.iter().find(|it| it.target.as_deref() == Some("use")).unwrap().action.clone();
    let of_action = model::ActionsRequest { action: Some(digest), ..model::ActionsRequest::default() };
    while sample.farm.client().actions(&of_action).await.unwrap().actions.len() < 2 {
        assert!(tokio::time::Instant::now() < end, "the action did not run again");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    browser.quit().await;
}

#[tokio::test]
async fn a_worker_is_drained_and_accepts_work_again() {
    let farm = Farm::all().await;
    let browser = Browser::start(&farm.http_url(), Look::default()).await;
    browser.open("/farm").await;
    browser.click("Drain").await;
    browser.click_on("form[action$='/drain'] button").await;
    browser.shows("○ draining").await;
    let workers = farm.client().workers().await.unwrap();
    assert_eq!(workers[0].heartbeat.status, WorkerStatus::Draining);
    browser.click("Accept work again").await;
    browser.shows("✓ ready").await;
    browser.quit().await;
}
