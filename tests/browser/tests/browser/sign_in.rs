//! Signing in with a provider of `OpenID` Connect, and pages of other sites that use what the browser keeps.

use std::{
    io::{Read as _, Write as _},
    net::TcpListener,
};

use browser_tests::{Browser, Look};
use bus::QuotaOf;
use farm::{Farm, OpenIdProvider, Port, SOON};
use model::{Outcome, Quota, State};

use crate::sample::{labelled, script};

/// Adds an element, or changes the title, if it is more than text.
const EVIL: &str = "<img src=x onerror=\"document.title='owned'\"><b id=owned>";

/// A page of another server on this machine, which the browser takes for the same site.
fn serve_elsewhere(page: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let mut connection = connection.unwrap();
            let _ = connection.read(&mut [0; 4096]);
            let head =
                format!("HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: {}", page.len());
            let _ = connection.write_all(format!("{head}\r\nconnection: close\r\n\r\n{page}").as_bytes());
        }
    });
    format!("http://{address}/")
}

/// A farm whose rules let people of group `web` sign in with a provider.
async fn open() -> (Farm, OpenIdProvider, Port, tempfile::TempDir) {
    let (port, folder) = (Port::reserve(), tempfile::tempdir().unwrap());
    let provider =
        OpenIdProvider::start(&format!("http://127.0.0.1:{}/login/local/callback", port.number())).await;
    let (rules, key) = (folder.path().join("rules.toml"), folder.path().join("session.key"));
    std::fs::write(&key, [5; 32]).unwrap();
    let rule = "[[rules]]\nissuer = \"local\"\nclaims = { groups = \"web\" }\ngroups = [\"*\"]\n\
        rights = [\"read\", \"submit\", \"cancel\", \"operate\"]\n";
    std::fs::write(&rules, format!("{}{rule}", provider.rules())).unwrap();
    let farm = Farm::builder()
        .without("worker")
        .env("FOREBAY_HTTP_LISTEN", format!("127.0.0.1:{}", port.number()))
        .env("FOREBAY_SESSION_KEY_FILE", key.to_str().unwrap())
        .env("FOREBAY_GATEWAY_ACCESS_FILE", rules.to_str().unwrap())
        .start()
        .await;
    (farm, provider, port, folder)
}

/// Signs in from the page that leads to the provider.
async fn sign_in(browser: &Browser, person: &str) {
    browser.click("Sign in with Local & Co").await;
    browser.element("input[name=login]").await.send_keys(person).await.unwrap();
    browser.element("input[name=password]").await.send_keys("any").await.unwrap();
    browser.click_on("button.login-submit").await;
    browser.click_on("button[autofocus]").await;
}

#[tokio::test]
async fn h1_a_page_of_another_server_changes_nothing_in_the_name_of_who_signed_in() {
    let (farm, _provider, _port, _folder) = open().await;
    let waiting = farm.submit("web", labelled("true", EVIL)).await;
    farm.wait_until(&waiting, SOON, |record| record.state() == State::Enqueued).await;
    let browser = Browser::start(&farm.http_url(), Look::default()).await;
    let path = format!("/builds/{waiting}");
    browser.open(&path).await;
    browser.shows("API key").await;
    browser.is_accessible("the page for signing in").await;
    browser.is_sound("the page for signing in").await;
    sign_in(&browser, "ada.web").await;
    // The page that was wanted, with forms that prove where they are from.
    browser.shows("Why it waits").await;
    browser.shows("Sign out").await;
    assert!(browser.current_url().await.path().ends_with(&waiting.id.to_string()));
    let sent_to = |action: String, fields: &str| {
        format!(
            "<form method=post action='{}{action}'>{fields}</form><script>document.forms[0].submit()</script>",
            farm.http_url()
        )
    };
    let quota = "<input name=group value=web><input name=esu value='x86=1'><input name=sure value=yes>";
    for page in [
        sent_to("/quota".into(), quota),
        sent_to(format!("{path}/cancel"), ""),
        sent_to("/logout".into(), ""),
    ] {
        let elsewhere = serve_elsewhere(page);
        browser.goto(&elsewhere).await;
        browser.shows("another site").await;
    }
    let key = QuotaOf::Group("web".parse().unwrap());
    assert_eq!(farm.bus().buckets().get::<Quota>(&key).await.unwrap().1, None);
    // The same by the pages of the farm; the part with the form was replaced since the page was made.
    browser.open(&path).await;
    browser.shows("Sign out").await;
    browser.run("document.querySelectorAll('main [name=form_token]').forEach(it => it.remove())").await;
    browser.click("Cancel this build").await;
    browser.click("Cancel the build").await;
    browser.shows("cancelled").await;
    let ended = farm.wait_finished(&waiting, SOON).await;
    assert_eq!(ended.result().map(|result| result.outcome), Some(Outcome::Cancelled));
    browser.click("Sign out").await;
    browser.shows("API key").await;
    browser.open(&path).await;
    browser.shows("API key").await;
    browser.quit().await;
}

#[tokio::test]
async fn a_person_signs_in_and_changes_things_without_scripts() {
    let (farm, _provider, _port, _folder) = open().await;
    let waiting = farm.submit("web", script("true")).await;
    farm.wait_until(&waiting, SOON, |record| record.state() == State::Enqueued).await;
    let browser = Browser::start(&farm.http_url(), Look::NO_SCRIPT).await;
    browser.open(&format!("/builds/{waiting}")).await;
    sign_in(&browser, "bob.web").await;
    browser.shows("bob.web").await;
    browser.click("Cancel this build").await;
    browser.click("Cancel the build").await;
    browser.shows("cancelled").await;
    browser.quit().await;
}

#[tokio::test]
async fn h4_a_name_of_another_site_that_leads_here_shows_nothing() {
    let farm = Farm::builder().only(&["enqueuer", "gateway"]).start().await;
    let browser = Browser::start(&farm.http_url(), Look::default()).await;
    browser.open("/builds").await;
    browser.shows("Builds").await;
    let rebound = farm.http_url().replacen("127.0.0.1", "rebound.example.com", 1);
    browser.goto(&format!("{rebound}/builds")).await;
    browser.shows("another site can make a name lead here").await;
    let read = "const done = arguments[0]; fetch('/v1/builds').then(it => done(it.status))";
    assert_eq!(browser.answer(read).await, serde_json::json!(421));
    browser.quit().await;
}
