//! Hostile names, output and files: nothing executes, and nothing breaks the page.

use browser_tests::{Browser, Look};
use farm::{Farm, SOON};

use crate::sample::{labelled, script};

/// Sets a mark in the page if any part of it is executed or becomes an element.
const EVIL: &str =
    "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>\"'>&<b id=owned>";

#[tokio::test]
async fn h2_names_and_output_and_files_are_only_text() {
    let farm = Farm::builder().with("archive").start().await;
    let printed = "printf '%s\\n' \"$EVIL\"; printf '\\033]8;;javascript:alert(1)\\007link\\033]8;;\\007\\n'; \
        printf '\\033[38;5;9999999999m\\033[%sm\\n' \"$(seq -s ';' 1 3000)\"; head -c 300000 /dev/zero | tr '\\0' x; echo; \
        printf '\\342\\200\\256reversed\\n'; printf '%s' \"$EVIL\" > 'a<img src=x>.html'; printf '%s' \"$EVIL\" > page.svg";
    let mut request = labelled(printed, EVIL);
    request.env = [("EVIL".to_owned(), EVIL.to_owned())].into();
    request.submitter = Some(EVIL.to_owned());
    request.command.push(EVIL.to_owned());
    request.outputs = vec!["*".to_owned()];
    let key = farm.submit("core", request).await;
    farm.wait_finished(&key, SOON).await;
    let long = farm.submit("core", labelled(&"x".repeat(20_000), &"y".repeat(200))).await;
    farm.wait_finished(&long, SOON).await;
    let plain = farm.submit("core", script("true")).await;
    farm.wait_finished(&plain, SOON).await;
    let pages = [
        "/builds".to_owned(),
        format!("/builds/{key}"),
        format!("/builds/{key}?q=onerror"),
        format!("/builds/{key}?line=1#L1"),
        format!("/builds/{key}/file/a%3Cimg%20src%3Dx%3E.html"),
        format!("/builds/{key}/file/page.svg"),
        format!("/builds/{long}"),
        format!("/compare?a={key}&b={plain}"),
        format!("/builds?text={}", "%3Cb%20id%3Downed%3E"),
    ];
    for look in [Look::default(), Look::PHONE] {
        let browser = Browser::start(&farm.http_url(), look).await;
        for page in &pages {
            browser.open(page).await;
            browser.element("main").await;
            browser.holds("return document.readyState === 'complete'").await;
            let owned = "return document.title === 'owned' || !!document.querySelector('#owned, main img, main script, a[href^=javascript]')";
            assert_eq!(browser.run(owned).await, false, "{page}");
            browser.fits(page).await;
            browser.is_sound(page).await;
        }
        browser.quit().await;
    }
}
