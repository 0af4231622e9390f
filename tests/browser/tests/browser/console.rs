//! Console output in the browser: lines have addresses, and a long log is one list.

use browser_tests::{Browser, Look};
use farm::{Farm, SOON};

use crate::sample::{Sample, script};

const ARROW_UP: &str = "\u{e013}";
const HOME: &str = "\u{e011}";

#[tokio::test]
async fn a_failed_tests_log_is_opened_and_a_line_linked() {
    let sample = Sample::start().await;
    let browser = Browser::start(&sample.farm.http_url(), Look::default()).await;
    browser.open("/builds").await;
    browser.click_on(&format!("a[href='/builds/{}']", sample.failed)).await;
    browser.shows("Why it did not succeed").await;
    browser.click_on("#log a.number[href$='#L2']").await;
    browser.holds("return location.hash === '#L2' && !!document.querySelector('#L2.target')").await;
    let address = browser.current_url().await;
    assert!(address.query().is_some_and(|query| query.contains("line=2")), "{address}");
    // Another reader of that address sees the line.
    browser.goto(address.as_str()).await;
    browser
        .holds("return document.querySelector('#L2.target .text').textContent.includes('cannot find main')")
        .await;
    browser.quit().await;
}

#[tokio::test]
async fn any_line_of_a_long_log_is_reached() {
    let farm = Farm::all().await;
    let key = farm.submit("core", script("seq 1 600000")).await;
    farm.wait_finished(&key, SOON).await;
    let browser = Browser::start(&farm.http_url(), Look::default()).await;
    browser.open(&format!("/builds/{key}")).await;
    browser.shows("600000 lines").await;
    browser.element("#L600000").await;
    let log = browser.element("#log").await;
    // One key moves by one line, also where a pixel is many lines.
    let first = "return Number(document.querySelector('#log .number').textContent)";
    let before = browser.run(first).await.as_u64().unwrap();
    log.send_keys(ARROW_UP).await.unwrap();
    browser.holds(&format!("{first} === {}", before - 1)).await;
    log.send_keys(HOME).await.unwrap();
    browser.element("#L1").await;
    browser.run("const log = document.querySelector('#log'); log.scrollTop = log.scrollHeight / 2").await;
    let middle = "const first = Number(document.querySelector('#log .number')?.textContent); return first > 290000 && first < 310000";
    browser.holds(middle).await;
    browser.open(&format!("/builds/{key}?line=123456#L123456")).await;
    browser.holds("return !!document.querySelector('#L123456.target')").await;
    browser.open(&format!("/builds/{key}?q=59999&from=599000")).await;
    browser.shows("lines contain").await;
    browser.click_on("pre.found a[href*='line=599990']").await;
    browser.holds("return !!document.querySelector('#L599990.target')").await;
    browser.is_sound("the page of a long log").await;
    browser.quit().await;
}
