//! Pages show and change what the API does for the same caller.

use std::time::Duration;

use callers::ApiKey;
use farm::{Locks, SOON};
use model::{BuildRequest, EnvironmentDefinition, EnvironmentName, Outcome};
use reqwest::{Client, Method, StatusCode};

use crate::{
    acting,
    check::{ended_as, script},
    locked::{grpc, http, start},
    zones::{APART, execute, upload, upload_action, zoned},
};

/// Adds a key with these rights in a group.
fn with_key(locks: &Locks, group: &str, rights: &str) -> ApiKey {
    let key = ApiKey::generate().unwrap();
    locks.write_rules(&format!(
        "[[keys]]\nname = \"added\"\nsha256 = \"{}\"\n[[rules]]\nkey = \"added\"\ngroups = [\"{group}\"]\nrights = {rights}\n",
        key.hash()
    ));
    key
}

struct Site {
    http: Client,
    url: String,
}

impl Site {
    async fn ask(&self, method: Method, path: &str, key: &ApiKey, form: &str) -> (StatusCode, String) {
        let request = self.http.request(method, format!("{}{path}", self.url)).bearer_auth(key.reveal());
        let request = request.header("Accept", "text/html").header("Origin", &self.url);
        let request = request.header("Content-Type", "application/x-www-form-urlencoded");
        let answer = request.body(form.to_owned()).send().await.unwrap();
        (answer.status(), answer.text().await.unwrap())
    }
}

#[tokio::test]
async fn the_page_of_an_action_shows_nothing_of_another_group() {
    let locks = Locks::new();
    let farm = start(&locks, zoned(acting::builder(), APART).with("archive")).await;
    let site = Site { http: http(&locks), url: farm.http_url() };
    let (web, other) =
        (grpc(&locks, &farm, Some(&locks.web)).await, grpc(&locks, &farm, Some(&locks.other)).await);
    let command = "cat /proc/sys/kernel/random/uuid";
    let root = upload(&web, &[b""]).await[0];
    let action = upload_action(&web, command, &root).await;
    let result = execute(&web, &action).await.unwrap().result.unwrap();
    let secret = String::from_utf8(result.stdout_raw).unwrap();
    assert!(secret.trim().len() == 36, "{secret:?}");
    let path = format!("/actions/{action}");
    // The archive follows the bus.
    let archived = async {
        loop {
            let (status, page) = site.ask(Method::GET, &path, &locks.web, "").await;
            assert_eq!(status, StatusCode::OK, "{page}");
            if page.contains(secret.trim()) && page.contains("executor-") {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(SOON, archived).await.unwrap();
    upload(&other, &[b""]).await;
    assert_eq!(upload_action(&other, command, &root).await, action);
    for path in [path.clone(), format!("{path}?group=web"), format!("{path}?group=other")] {
        let (status, page) = site.ask(Method::GET, &path, &locks.other, "").await;
        assert_eq!(status, StatusCode::OK, "{page}");
        assert!(!page.contains(secret.trim()) && !page.contains("executor-"), "{path}: {page}");
    }
}

#[tokio::test]
async fn who_operates_one_group_changes_nothing_for_others() {
    let locks = Locks::new();
    let operator = with_key(&locks, "web", r#"["read", "submit", "operate"]"#);
    let farm = start(&locks, farm::Farm::builder().with("archive").with("cas")).await;
    let site = Site { http: http(&locks), url: farm.http_url() };
    for (name, allowed) in [("gcc", false), ("other/gcc", false), ("web/gcc", true)] {
        let name: EnvironmentName = name.parse().unwrap();
        let definition: EnvironmentDefinition =
            serde_json::from_str(r#"{"debian": "trixie", "packages": ["gcc"]}"#).unwrap();
        let (_, number) = farm.client().propose_environment(&name, definition, None).await.unwrap();
        let by_page = site.ask(Method::POST, &format!("/farm/approve/{number}/{name}"), &operator, "").await;
        let environments = farm.client().environments().await.unwrap();
        let found = environments.iter().find(|it| it.name == name).unwrap();
        let shown = serde_json::to_string(found).unwrap();
        if allowed {
            assert!(by_page.0.is_success(), "{name}: {}", by_page.1);
            assert!(shown.contains("key:added"), "who approved is recorded: {shown}");
        } else {
            assert_eq!(by_page.0, StatusCode::FORBIDDEN, "{name}: {}", by_page.1);
            assert!(shown.contains("proposed"), "{shown}");
        }
    }
    let worker = farm.client().workers().await.unwrap().remove(0).heartbeat.worker.to_string();
    for (method, path, form) in [
        (Method::POST, "/quota".to_owned(), "group=other&esu=&sure=yes"),
        (Method::POST, format!("/farm/{worker}/drain"), ""),
        (Method::POST, format!("/farm/{worker}/resume"), ""),
        (Method::GET, "/audit".to_owned(), ""),
        (Method::GET, "/v1/audit".to_owned(), ""),
    ] {
        let (status, text) = site.ask(method, &path, &operator, form).await;
        assert_eq!(status, StatusCode::FORBIDDEN, "{path}: {text}");
    }
    let (_, page) = site.ask(Method::GET, "/farm", &operator, "").await;
    assert!(page.contains("web/gcc") && !page.contains("other/gcc"), "{page}");
}

#[tokio::test]
async fn quotas_show_builds_to_who_may_read_them() {
    let locks = Locks::new();
    let operator = with_key(&locks, "other", r#"["operate"]"#);
    let farm = start(&locks, farm::Farm::builder()).await;
    let site = Site { http: http(&locks), url: farm.http_url() };
    let request = BuildRequest { id: None, ..script("echo s3cret; sleep 1000") };
    let build = farm.submit("web", request).await;
    farm.wait_until(&build, SOON, |record| record.state() == model::State::InProgress).await;
    let (status, page) = site.ask(Method::GET, "/quota?group=web", &locks.operator, "").await;
    assert!(status == StatusCode::OK && page.contains("s3cret"), "{page}");
    let (status, page) = site.ask(Method::GET, "/quota?group=web", &operator, "").await;
    assert!(status == StatusCode::OK && !page.contains("s3cret"), "{page}");
    farm.client().cancel(&build, None).await.unwrap();
    ended_as(&farm, &build, Outcome::Cancelled).await;
}
