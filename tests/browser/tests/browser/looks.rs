//! Every page in both themes, on a phone, and without scripts: nothing is logged, nothing is too wide, and axe-core
//! finds no fault in it.

use browser_tests::{Browser, Look};

use crate::sample::{Sample, runs_all};

/// Opens every page and checks it; keeps pictures of it.
async fn tour(sample: &Sample, look: Look, name: &str) {
    let browser = Browser::start(&sample.farm.http_url(), look).await;
    for (page, path) in sample.tour().await {
        browser.open(&path).await;
        browser.element("main h1").await;
        if runs_all() {
            browser.keep_picture(&format!("{} {name}", page.replace(' ', "-"))).await;
        }
        // Missing pages are logged by the browser itself.
        if page != "missing" {
            browser.is_sound(page).await;
        }
        if !look.no_script {
            browser.fits(page).await;
            browser.is_accessible(page).await;
        }
    }
    browser.quit().await;
}

#[tokio::test]
async fn every_page_is_sound_and_accessible() {
    let sample = Sample::start().await;
    tour(&sample, Look::default(), "light").await;
    if runs_all() {
        tour(&sample, Look::DARK, "dark").await;
        tour(&sample, Look { dark: true, ..Look::PHONE }, "dark-phone").await;
    }
    tour(&sample, Look::PHONE, "phone").await;
}

#[tokio::test]
async fn every_page_says_the_same_without_scripts() {
    let sample = Sample::start().await;
    tour(&sample, Look::NO_SCRIPT, "without-scripts").await;
    let browser = Browser::start(&sample.farm.http_url(), Look::NO_SCRIPT).await;
    browser.open(&format!("/builds/{}", sample.failed)).await;
    browser.shows("the command failed: exit code 2").await;
    browser.shows("cannot find main").await;
    browser.open(&format!("/builds/{}?q=FIND", sample.failed)).await;
    browser.shows("1 line contains").await;
    browser.open(&format!("/builds/{}", sample.job)).await;
    for text in ["Graph of the tasks", "no such luck", "skipped", "on the critical path"] {
        let source = browser.source().await;
        assert!(source.contains(text), "{text}: {source}");
    }
    browser.quit().await;
}
