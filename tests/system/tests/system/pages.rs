//! The pages of the gateway, as a browser without scripts reads them.

use farm::{Farm, SOON};
use model::{BuildRequest, Outcome, State};
use prost::Message as _;
use reapi::execution::{Action, Directory, DirectoryNode};
use reqwest::{Response, StatusCode};

use crate::{
    acting,
    check::{ended_as, script},
    http::client,
};

async fn get(farm: &Farm, path: &str) -> Response {
    client().get(format!("{}{path}", farm.http_url())).send().await.unwrap()
}

async fn text(farm: &Farm, path: &str) -> String {
    let response = get(farm, path).await;
    assert_eq!(response.status(), StatusCode::OK, "{path}");
    let policy = response.headers()["content-security-policy"].to_str().unwrap().to_owned();
    assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    response.text().await.unwrap()
}

#[tokio::test]
async fn a_failed_build_is_found_and_explained() {
    let farm = Farm::all().await;
    let request = BuildRequest {
        labels: [("branch".to_owned(), "main".to_owned())].into(),
        ..script("echo before; echo 'cannot find it' >&2; exit 3")
    };
    let key = farm.submit("core", request).await;
    ended_as(&farm, &key, Outcome::Failed).await;
    let path = format!("/builds/{key}");
    for query in ["", "?group=core", "?state=FINISHED&outcome=failed&text=", "?label=branch%3Dmain"] {
        assert!(
            text(&farm, &format!("/builds{query}")).await.contains(&format!("href=\"{path}\"")),
            "{query}"
        );
    }
    assert!(!text(&farm, "/builds?group=other").await.contains(&path));
    let page = text(&farm, &path).await;
    for part in
        ["Why it did not succeed", "exit code 3", "✗ failed", "branch=main", "id=\"L2\"", "cannot find it"]
    {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert!(!page.contains("style=") && !page.contains("Cancel"), "{page}");
}

#[tokio::test]
async fn a_waiting_build_says_why_and_is_cancelled_only_from_its_page() {
    let farm = Farm::builder().without("worker").start().await;
    let key = farm.submit("core", script("true")).await;
    farm.wait_until(&key, SOON, |record| record.state() == State::Enqueued).await;
    let path = format!("/builds/{key}");
    let page = text(&farm, &path).await;
    assert!(page.contains("Why it waits") && page.contains("no worker"), "{page}");
    let farm_page = text(&farm, "/farm").await;
    let queue = farm_page.split("<caption").find(|part| part.contains("Queues")).unwrap_or_default();
    assert!(queue.contains("interactive") && queue.contains("<td class=\"number\">1</td>"), "{farm_page}");
    let url = format!("{}{path}/cancel", farm.http_url());
    let foreign = [("origin", "http://elsewhere"), ("sec-fetch-site", "cross-site"), ("x-none", "")];
    for (name, value) in foreign {
        let refused = client().post(&url).header(name, value).send().await.unwrap();
        assert_eq!(refused.status(), StatusCode::FORBIDDEN, "{name}");
    }
    assert!(text(&farm, &path).await.contains("… waiting"));
    let done = client().post(&url).header("origin", farm.http_url()).send().await.unwrap();
    assert!(done.text().await.unwrap().contains("cancelled"));
    ended_as(&farm, &key, Outcome::Cancelled).await;
}

#[tokio::test]
async fn no_other_site_can_use_the_farm_in_the_name_of_a_reader() {
    let farm = Farm::all().await;
    let url = format!("{}/v1/builds/core", farm.http_url());
    let body = r#"{"command": ["true"]}"#;
    let post = |headers: &[(&str, &str)]| {
        let request = client().post(&url).body(body);
        headers.iter().fold(request, |request, (name, value)| request.header(*name, *value)).send()
    };
    // A form of another site can send JSON as plain text.
    let foreign =
        [("content-type", "text/plain"), ("origin", "http://elsewhere"), ("sec-fetch-site", "cross-site")];
    assert_eq!(post(&foreign).await.unwrap().status(), StatusCode::FORBIDDEN);
    assert_eq!(post(&[("host", "elsewhere")]).await.unwrap().status(), StatusCode::MISDIRECTED_REQUEST);
    assert_eq!(post(&[]).await.unwrap().status(), StatusCode::CREATED, "no browser");
    let rebound = client().get(format!("{}/builds", farm.http_url())).header("host", "elsewhere:80");
    assert_eq!(rebound.send().await.unwrap().status(), StatusCode::MISDIRECTED_REQUEST);
}

#[tokio::test]
async fn changes_of_what_does_not_exist_are_refused_and_those_of_an_ended_build_end() {
    let farm = Farm::all().await;
    let key = farm.submit("core", script("true")).await;
    ended_as(&farm, &key, Outcome::Succeeded).await;
    let changes = |path: String| {
        let request = client().get(format!("{}{path}", farm.http_url()));
        request.header("accept", "text/event-stream").send()
    };
    let missing = changes("/builds/core/01a2135a-00b6-76ff-8724-aa3376ecc374".to_owned()).await.unwrap();
    assert_eq!(missing.status(), StatusCode::NOT_FOUND);
    let wrong = changes("/quota?within=nonsense".to_owned()).await.unwrap();
    assert_eq!(wrong.status(), StatusCode::BAD_REQUEST);
    let ended = changes(format!("/builds/{key}")).await.unwrap().text().await.unwrap();
    assert!(ended.contains("succeeded") && ended.contains("event: end"), "{ended}");
}

#[tokio::test]
async fn nothing_of_a_build_is_markup() {
    let farm = Farm::all().await;
    let evil = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&";
    let mut request = script(
        "printf '\\033[31m<b>red</b>\\033[0m \\033]8;;javascript:alert(3)\\007link\\n'; touch 'a<i>.txt'",
    );
    request.outputs = vec!["*.txt".to_owned()];
    request.labels = [("x".to_owned(), evil.to_owned())].into();
    request.submitter = Some(evil.to_owned());
    request.env = [("NAME".to_owned(), evil.to_owned())].into();
    request.command.push(evil.to_owned());
    let key = farm.submit("core", request).await;
    ended_as(&farm, &key, Outcome::Succeeded).await;
    let page = text(&farm, &format!("/builds/{key}")).await;
    let list = text(&farm, "/builds").await;
    for shown in [&page, &list] {
        let lower = shown.to_lowercase();
        assert_eq!(lower.matches("<script").count(), 1, "only that of the pages: {shown}");
        for part in ["<script>", "<img", "<b>", "<i>", "href=\"javascript", "\u{1b}"] {
            assert!(!lower.contains(part), "{part}: {shown}");
        }
    }
    assert!(page.contains("<span class=\"f1\">&lt;b&gt;red&lt;/b&gt;</span> link"), "{page}");
    assert!(page.contains("outputs/a%3Ci%3E.txt"), "{page}");
}

#[tokio::test]
async fn a_long_log_is_shown_in_windows() {
    let farm = Farm::all().await;
    let key = farm.submit("core", script("seq 1 5000")).await;
    ended_as(&farm, &key, Outcome::Succeeded).await;
    let path = format!("/builds/{key}");
    let last = text(&farm, &path).await;
    assert!(last.contains("5000 lines") && last.contains("id=\"L5000\"") && !last.contains("id=\"L4500\""));
    assert!(last.contains("line=4001#console") && last.contains("line=1#console"), "{last}");
    let first = text(&farm, &format!("{path}?line=1")).await;
    assert!(
        first.contains("id=\"L500\"") && first.contains("line=501#console") && !first.contains("id=\"L501\"")
    );
    assert!(last.len() < 120_000, "{} bytes", last.len());
}

#[tokio::test]
async fn what_does_not_exist_is_a_page_too() {
    let farm = Farm::all().await;
    let missing = get(&farm, "/builds/core/01a2135a-00b6-76ff-8724-aa3376ecc374").await;
    assert_eq!(missing.status(), StatusCode::NOT_FOUND);
    assert!(missing.text().await.unwrap().contains("Show the builds"));
    let wrong = get(&farm, "/builds?state=nonsense").await;
    assert_eq!(wrong.status(), StatusCode::BAD_REQUEST);
    assert!(text(&farm, "/builds?group=").await.contains("forebay submit"), "an empty list says what to do");
    let page = text(&farm, "/builds").await;
    let path = page.split('"').find(|part| part.starts_with("/pages/")).unwrap();
    let style = get(&farm, path).await;
    assert!(style.headers()["content-type"].to_str().unwrap().starts_with("text/css"));
    assert!(style.headers()["cache-control"].to_str().unwrap().contains("immutable"));
}

#[tokio::test]
async fn the_farm_shows_what_runs_and_what_waits() {
    let farm = Farm::all().await;
    let running = farm.submit("core", script("sleep 600")).await;
    farm.wait_until(&running, SOON, |record| record.state() == State::InProgress).await;
    let page = text(&farm, "/farm").await;
    assert!(page.contains("✓ ready") && page.contains(&format!("href=\"/builds/{running}\"")), "{page}");
    assert!(page.contains("href=\"/builds?group=core\""), "{page}");
    let none = Farm::builder().without("worker").start().await;
    assert!(text(&none, "/farm").await.contains("forebay serve worker"));
}

#[tokio::test]
async fn a_long_search_is_refused() {
    let farm = Farm::all().await;
    let key = farm.submit("core", script("echo it")).await;
    ended_as(&farm, &key, Outcome::Succeeded).await;
    let search =
        async |length: usize| get(&farm, &format!("/builds/{key}?q={}", "é".repeat(length))).await.status();
    assert_eq!(search(200).await, StatusCode::OK);
    assert_eq!(search(201).await, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn inputs_with_paths_that_no_archive_has_are_refused() {
    let farm = acting::builder().start().await;
    let remote = acting::remote(&farm).await;
    let nested = async |levels: usize| {
        let mut root = acting::put(&remote, Directory::default().encode_to_vec()).await;
        for _ in 0..levels {
            let digest = Some(reapi::digest::to_proto(&root));
            let folder = DirectoryNode { name: "n".repeat(250), digest };
            let parent = Directory { directories: vec![folder], ..Directory::default() };
            root = acting::put(&remote, parent.encode_to_vec()).await;
        }
        let action = acting::upload_as(&remote, &acting::sh("true"), Action::default(), &root).await;
        get(&farm, &format!("/action-inputs/{action}")).await
    };
    assert_eq!(nested(16).await.status(), StatusCode::OK);
    let refused = nested(17).await;
    assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
    assert!(refused.text().await.unwrap().contains("too long for an archive"));
}

#[tokio::test]
async fn a_page_whose_farm_does_not_answer_says_that_it_is_stale_until_it_does() {
    let farm = Farm::all().await;
    let request = client().get(format!("{}/farm", farm.http_url())).header("accept", "text/event-stream");
    let mut changes = request.send().await.unwrap();
    assert_eq!(changes.status(), StatusCode::OK);
    let mut until = async |event: &str| {
        let mut text = String::new();
        while !text.contains(&format!("event: {event}\n")) {
            let chunk = tokio::time::timeout(SOON, changes.chunk()).await.expect("an event of the page");
            text.push_str(&String::from_utf8_lossy(&chunk.unwrap().expect("the page ends")));
        }
    };
    let enqueuer = farm.take("enqueuer");
    enqueuer.pause();
    until("stale").await;
    enqueuer.resume();
    until("alive").await;
    farm.keep(enqueuer);
}
