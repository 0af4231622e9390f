//! Pages that change by themselves.

use browser_tests::{Browser, Look};
use farm::{Farm, SOON};
use model::{Outcome, Quota, State};

use crate::sample::script;

#[tokio::test]
async fn a_build_is_followed_from_the_queue_to_its_end() {
    let farm = Farm::builder().without("worker").start().await;
    let gate = farm.folder().join("gate");
    let wait =
        format!("echo first; while [ ! -e {} ]; do sleep 0.02; done; seq 1 3000; echo last", gate.display());
    let key = farm.submit("core", script(&wait)).await;
    farm.wait_until(&key, SOON, |record| record.state() == State::Enqueued).await;
    let browser = Browser::start(&farm.http_url(), Look::default()).await;
    browser.open("/builds").await;
    browser.shows("waiting").await;
    browser.open(&format!("/builds/{key}")).await;
    browser.shows("Why it waits").await;
    browser.shows("no worker").await;
    browser.shows("Place 1 of 1").await;
    let worker = farm.spawn("worker").await;
    browser.shows("▶ running").await;
    browser.hides("Why it waits").await;
    browser.holds("return document.querySelector('#log').textContent.includes('first')").await;
    std::fs::write(&gate, "").unwrap();
    browser.shows("✓ succeeded").await;
    // The log follows its end, and holds only the lines in sight.
    browser.holds("return document.querySelector('#log').textContent.includes('last')").await;
    browser.holds("return document.querySelectorAll('#log .line').length < 200").await;
    browser.holds("return document.querySelector('#connection').textContent === ''").await;
    browser.is_sound("the page of the build").await;
    browser.quit().await;
    drop(worker);
}

#[tokio::test]
async fn the_list_shows_new_builds_and_their_ends() {
    let farm = Farm::all().await;
    let browser = Browser::start(&farm.http_url(), Look::default()).await;
    browser.open("/builds?group=core").await;
    browser.shows("No build matches").await;
    browser.shows("live").await;
    let other = farm.submit("other", script("true")).await;
    let key = farm.submit("core", script("true")).await;
    browser.element(&format!("a[href='/builds/{key}']")).await;
    browser.shows("succeeded").await;
    assert!(!browser.source().await.contains(&other.id.to_string()), "a build of another group");
    browser.quit().await;
}

#[tokio::test]
async fn the_reason_why_a_build_waits_changes() {
    let farm =
        Farm::builder().with("governor").workspaces(1).env("FOREBAY_GOVERNOR_TICK_MS", "200").start().await;
    let gate = farm.folder().join("gate");
    let blocker = format!("while [ ! -e {} ]; do sleep 0.02; done", gate.display());
    let first = farm.submit("core", script(&blocker)).await;
    farm.wait_until(&first, SOON, |record| record.state() == State::InProgress).await;
    let second = farm.submit("core", script("true")).await;
    let browser = Browser::start(&farm.http_url(), Look::default()).await;
    browser.open(&format!("/builds/{second}")).await;
    browser.shows("no workspace is idle").await;
    let none = Quota { esu: [("x86".parse().unwrap(), model::Esu::new(0.0).unwrap())].into_iter().collect() };
    let group = bus::QuotaOf::Group("core".parse().unwrap());
    farm.bus().buckets().put(&group, Some(&none)).await.unwrap();
    browser.shows("quota").await;
    farm.bus().buckets().put::<Quota>(&group, None).await.unwrap();
    std::fs::write(&gate, "").unwrap();
    browser.shows("✓ succeeded").await;
    let ended = farm.wait_finished(&second, SOON).await;
    assert_eq!(ended.result().map(|result| result.outcome), Some(Outcome::Succeeded));
    browser.quit().await;
}
