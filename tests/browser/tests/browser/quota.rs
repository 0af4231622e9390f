//! The page of quotas.

use browser_tests::{Browser, Look};
use farm::Farm;

use crate::sample::script;

#[tokio::test]
async fn a_quota_is_changed_and_its_chart_moves() {
    let farm = Farm::builder().with("governor").env("FOREBAY_GOVERNOR_TICK_MS", "200").start().await;
    let browser = Browser::start(&farm.http_url(), Look::default()).await;
    browser.open("/quota").await;
    browser.shows("no group is limited").await;
    browser.element("form[method=post] input[name=group]").await.send_keys("core").await.unwrap();
    browser.element("form[method=post] input[name=esu]").await.send_keys("x86=3").await.unwrap();
    browser.click("Change…").await;
    browser.shows("Change the quota of core?").await;
    browser.shows("x86=3").await;
    browser.click("Change it").await;
    browser.shows("Quota of core").await;
    let gate = farm.folder().join("gate");
    let busy = format!("while [ ! -e {} ]; do :; done", gate.display());
    farm.submit("core", script(&busy)).await;
    // The line of the use rises from the bottom of the chart.
    let rises = "const line = document.querySelector('.line-pv'); if (!line) return false; \
        const heights = line.getAttribute('d').match(/ [0-9.]+/g).map(Number); return Math.max(...heights) - Math.min(...heights) > 8";
    browser.holds(rises).await;
    browser.is_sound("the page of quotas").await;
    std::fs::write(&gate, "").unwrap();
    browser.open("/quota?group=core").await;
    browser.element("form[method=post] input[name=esu]").await.send_keys(" vax=1").await.unwrap();
    browser.click("Change…").await;
    browser.shows("unknown executor type").await;
    browser.quit().await;
}
