//! What a first-time user finds, from the start page, by clicks.

use browser_tests::{Browser, Look};

use crate::sample::Sample;

#[tokio::test]
async fn why_a_build_failed_and_whether_it_failed_before_takes_few_clicks() {
    let sample = Sample::start().await;
    let browser = Browser::start(&sample.farm.http_url(), Look::default()).await;
    browser.open("/").await;
    browser.shows("Builds").await;
    // One click: the failed build, and why.
    browser.click_on(&format!("a[href='/builds/{}']", sample.failed)).await;
    browser.shows("cannot find main").await;
    // Two clicks: all builds with this command.
    browser.click("Did it fail before? Builds with this command").await;
    browser.element(&format!("a[href='/builds/{}']", sample.failed)).await;
    let page = browser.text().await;
    assert!(page.contains("✗ failed") && !page.contains("✓ succeeded"), "{page}");
    browser.quit().await;
}

#[tokio::test]
async fn a_reader_finds_their_builds() {
    let sample = Sample::start().await;
    let browser = Browser::start(&sample.farm.http_url(), Look::default()).await;
    browser.open("/").await;
    browser.click("My builds").await;
    browser.element("input[name=submitter]").await.send_keys("ada").await.unwrap();
    browser.click("Show my builds").await;
    browser.shows("Builds of ada").await;
    browser.shows("Failed").await;
    browser.element(&format!("a[href='/builds/{}']", sample.failed)).await;
    browser.quit().await;
}
