//! Access rules of gateways, against callers who want more than they may do.

use std::path::{Path, PathBuf};

use farm::{Authority, CLIENT, Certified, Farm, Locks, Output, SOON};
use model::Group;
use reapi::{
    execution::{
        ActionResult, ExecuteRequest, FindMissingBlobsRequest, GetActionResultRequest,
        GetCapabilitiesRequest, UpdateActionResultRequest, WaitExecutionRequest,
    },
    longrunning::{CancelOperationRequest, GetOperationRequest},
};
use serde_json::{Value, json};
use tonic::{Code, Status, transport::Channel};

use crate::{
    acting,
    check::until,
    locked::{Calls, SHA256, bearer, channel, grpc, http, http_trusting, start},
};

pub(crate) fn group(name: &str) -> Group {
    name.parse().unwrap()
}

/// The path as text.
pub(crate) fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

pub(crate) async fn capabilities(calls: &Calls) -> Result<(), Status> {
    calls.capabilities().get_capabilities(GetCapabilitiesRequest::default()).await.map(drop)
}

#[tokio::test]
async fn g1_calls_without_valid_credentials_are_refused_with_the_same_words() {
    let locks = Locks::new();
    let farm = start(&locks, acting::builder()).await;
    let known = grpc(&locks, &farm, Some(&locks.web)).await;
    capabilities(&known).await.unwrap();
    let stranger = grpc(&locks, &farm, None).await;
    let unlisted = callers::ApiKey::generate().unwrap();
    let refused = [
        stranger.and("authorization", &format!("Bearer {}", unlisted.reveal())),
        stranger.and("authorization", "Bearer a.b.c"),
        stranger.and("authorization", "Bearer fbk_1234"),
        stranger.and("authorization", "Basic eDp5"),
        stranger.and("authorization", &format!("Bearer {}", "a".repeat(20_000))),
        stranger.and("x-forebay-api-key", unlisted.reveal()),
        known.and("authorization", &format!("Bearer {}", unlisted.reveal())),
        known.and("x-forebay-api-key", locks.web.reveal()),
    ];
    for calls in &refused {
        let status = capabilities(calls).await.unwrap_err();
        assert_eq!(status.code(), Code::Unauthenticated, "{status:?}");
        assert_eq!(status.message(), "the credentials are not accepted");
    }
    let status = capabilities(&stranger).await.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated, "{status:?}");
    capabilities(&stranger.and("x-forebay-api-key", locks.web.reveal())).await.unwrap();
}

/// A script that ends when the file exists that is returned with it.
fn waits(farm: &Farm) -> (PathBuf, String) {
    let marker = farm.folder().join("may-end");
    let script = format!("while ! test -e {}; do sleep 0.05; done", marker.display());
    (marker, script)
}

/// Executes a script by this caller in the group of a header, and returns the name of the operation.
pub(crate) async fn execute(
    locks: &Locks,
    farm: &Farm,
    calls: &Calls,
    script: &str,
) -> Result<String, Status> {
    remote::log_in(remote::Login {
        token: Some(locks.path("operator.key")),
        authorities: Some(locks.path("ca.pem")),
        certificate: None,
    });
    let action = acting::upload(&acting::remote(farm).await, script).await;
    let action_digest = Some(reapi::digest::to_proto(&action));
    let request = ExecuteRequest { action_digest, ..ExecuteRequest::default() };
    let mut stream = calls.execution().execute(request).await?.into_inner();
    Ok(stream.message().await?.unwrap().name)
}

#[tokio::test]
async fn g2_actions_run_in_groups_of_their_caller_only() {
    let locks = Locks::new();
    let farm = start(&locks, acting::builder()).await;
    let web = grpc(&locks, &farm, Some(&locks.web)).await;
    let name = execute(&locks, &farm, &web, "echo own").await.unwrap();
    assert!(name.contains("operations/web/"), "without a header the only group of the caller counts: {name}");
    let named = execute(&locks, &farm, &web.and("x-forebay-group", "web"), "echo named").await.unwrap();
    assert!(named.contains("operations/web/"), "{named}");
    for foreign in ["other", "default"] {
        let asks = web.and("x-forebay-group", foreign);
        let status = execute(&locks, &farm, &asks, "echo foreign").await.unwrap_err();
        assert_eq!(status.code(), Code::PermissionDenied, "{status:?}");
        assert!(status.message().contains("its groups: web"), "{status:?}");
    }
    let reader = grpc(&locks, &farm, Some(&locks.reader)).await;
    let status = execute(&locks, &farm, &reader, "echo reader").await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied, "{status:?}");
}

#[tokio::test]
async fn g3_only_those_who_may_write_the_action_cache() {
    let locks = Locks::new();
    let farm = start(&locks, acting::builder()).await;
    let digest = reapi::digest::to_proto(&SHA256.digest(b"an action"));
    let update = || UpdateActionResultRequest {
        action_digest: Some(digest.clone()),
        action_result: Some(ActionResult { exit_code: 7, ..ActionResult::default() }),
        ..UpdateActionResultRequest::default()
    };
    let get = || GetActionResultRequest {
        action_digest: Some(digest.clone()),
        ..GetActionResultRequest::default()
    };
    for key in [&locks.web, &locks.reader] {
        let calls = grpc(&locks, &farm, Some(key)).await;
        let status = calls.action_cache().update_action_result(update()).await.unwrap_err();
        assert_eq!(status.code(), Code::PermissionDenied, "{status:?}");
        let missing = calls.action_cache().get_action_result(get()).await.unwrap_err();
        assert_eq!(missing.code(), Code::NotFound, "{missing:?}");
    }
    let operator = grpc(&locks, &farm, Some(&locks.operator)).await;
    operator.action_cache().update_action_result(update()).await.unwrap();
    let reader = grpc(&locks, &farm, Some(&locks.reader)).await;
    let found = reader.action_cache().get_action_result(get()).await.unwrap().into_inner();
    assert_eq!(found.exit_code, 7);
    let find = FindMissingBlobsRequest::default();
    reader.cas().find_missing_blobs(find).await.unwrap();
}

#[tokio::test]
async fn g6_an_operation_of_another_group_is_answered_as_an_unknown_one() {
    let locks = Locks::new();
    let farm = start(&locks, acting::builder()).await;
    let web = grpc(&locks, &farm, Some(&locks.web)).await;
    let (marker, script) = waits(&farm);
    let name = execute(&locks, &farm, &web, &script).await.unwrap();
    let other = grpc(&locks, &farm, Some(&locks.other)).await;
    let unknown =
        name.rsplit_once('/').unwrap().0.to_owned() + "/" + &model::ExecutionId::generate().to_string();
    let answers = async |calls: &Calls, name: &str| {
        let name = || name.to_owned();
        let mut operations = calls.operations();
        [
            operations.get_operation(GetOperationRequest { name: name() }).await.map(drop),
            operations.cancel_operation(CancelOperationRequest { name: name() }).await.map(drop),
            calls.execution().wait_execution(WaitExecutionRequest { name: name() }).await.map(drop),
        ]
    };
    let (of_other, of_unknown) = (answers(&other, &name).await, answers(&web, &unknown).await);
    for (foreign, unknown_one) in of_other.into_iter().zip(of_unknown) {
        let (foreign, unknown_one) = (foreign.unwrap_err(), unknown_one.unwrap_err());
        assert_eq!(foreign.code(), Code::NotFound, "{foreign:?}");
        assert_eq!(foreign.message().replace(&name, "X"), unknown_one.message().replace(&unknown, "X"));
    }
    // It was not cancelled, and its own group sees it.
    let mine = web.operations().get_operation(GetOperationRequest { name: name.clone() }).await.unwrap();
    assert!(!mine.into_inner().done);
    std::fs::write(marker, "").unwrap();
}

#[tokio::test]
async fn g14_health_tells_nothing_and_metrics_need_a_right() {
    let locks = Locks::new();
    let farm = start(&locks, Farm::builder()).await;
    let (client, url) = (http(&locks), farm.http_url());
    let health = client.get(format!("{url}/healthz")).send().await.unwrap();
    assert_eq!(health.status(), 200);
    assert!(!health.text().await.unwrap().contains("web"));
    let metrics = client.get(format!("{url}/metrics")).send().await.unwrap();
    assert_eq!(metrics.status(), 401);
    let challenge: Vec<&str> =
        metrics.headers().get_all("www-authenticate").iter().filter_map(|text| text.to_str().ok()).collect();
    assert!(challenge.iter().any(|text| text.starts_with("Basic")) && challenge.contains(&"Bearer"));
    let metrics = client.get(format!("{url}/metrics")).bearer_auth(locks.web.reveal()).send().await.unwrap();
    assert_eq!(metrics.status(), 403);
    // As a browser sends what its user entered.
    let metrics = client.get(format!("{url}/metrics")).basic_auth("me", Some(locks.operator.reveal()));
    assert_eq!(metrics.send().await.unwrap().status(), 200);
}

/// The status and JSON of a request.
pub(crate) async fn answer(request: reqwest::RequestBuilder, key: &callers::ApiKey) -> (u16, Value) {
    let answer = request.bearer_auth(key.reveal()).send().await.unwrap();
    let status = answer.status().as_u16();
    (status, serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap_or_default())
}

#[tokio::test]
async fn http_callers_see_and_change_their_own_groups_only() {
    let locks = Locks::new();
    let farm = start(&locks, Farm::builder()).await;
    let (client, url) = (http(&locks), farm.http_url());
    let create = |group: &str, priority: &str| {
        let body = json!({ "command": ["sleep", "60"], "priority": priority, "submitter": "forged" });
        client.post(format!("{url}/v1/builds/{group}")).json(&body)
    };
    let get = |path: &str| client.get(format!("{url}{path}"));
    let (status, reply) = answer(create("web", "interactive"), &locks.web).await;
    assert_eq!(status, 201, "{reply}");
    let path = format!("/v1/builds/web/{}", reply["id"].as_str().unwrap());
    let (_, build) = answer(get(&path), &locks.web).await;
    assert_eq!(build["submitter"], "key:web", "{build}");
    for (what, status, request, key) in [
        ("a higher priority", 403, create("web", "emergency"), &locks.web),
        ("another group", 403, create("other", "interactive"), &locks.web),
        ("without the right", 403, create("web", "interactive"), &locks.reader),
        ("a build of another group", 403, get(&path), &locks.other),
        ("its log", 403, get(&format!("{path}/log")), &locks.other),
        ("its events", 403, get(&format!("{path}/events")), &locks.other),
        ("builds of all groups", 403, get("/v1/builds"), &locks.web),
        ("builds of an own group", 200, get("/v1/builds/web"), &locks.web),
        ("all workers", 403, get("/v1/workers"), &locks.web),
        ("all workers for an operator", 200, get("/v1/workers"), &locks.operator),
        ("a page of another group", 403, get(&path.replace("/v1", "")), &locks.other),
        ("a page of the own group", 200, get("/builds?group=web"), &locks.reader),
        ("a page of two groups", 403, get("/builds?group=web&group=other"), &locks.reader),
        ("a comparison beside an own group", 403, get("/compare?group=web&a=other/x&b=web/y"), &locks.reader),
        ("the farm", 403, get("/farm"), &locks.reader),
        ("its quotas", 403, client.post(format!("{url}/quota")).header("origin", &url), &locks.web),
        (
            "cancel the build of another caller",
            403,
            client.post(format!("{url}{path}/cancel")),
            &locks.web_too,
        ),
        ("cancel without the right", 403, client.post(format!("{url}{path}/cancel")), &locks.reader),
        ("cancel an own build", 200, client.post(format!("{url}{path}/cancel")), &locks.web),
    ] {
        let (actual, body) = answer(request, key).await;
        assert_eq!(actual, status, "{what}: {body}");
    }
}

#[tokio::test]
async fn a_client_certificate_is_a_credential_over_http_too() {
    let locks = Locks::new();
    let farm = start(&locks, Farm::builder()).await;
    let url = format!("{}/v1/builds/web", farm.http_url());
    // Installs what clients encrypt with.
    drop(http(&locks));
    let get = async |client: &Certified| {
        let pem = format!("{}{}", client.certificate, client.key);
        let identity = reqwest::Identity::from_pem(pem.as_bytes()).unwrap();
        let authority = reqwest::Certificate::from_pem(locks.authority.pem().as_bytes()).unwrap();
        let http = reqwest::Client::builder().tls_certs_only([authority]).identity(identity).build().unwrap();
        http.get(&url).send().await.unwrap().status().as_u16()
    };
    assert_eq!(get(&locks.authority.certify(&[CLIENT])).await, 200);
    assert_eq!(get(&locks.authority.certify(&["evil.example.com"])).await, 401);
}

#[tokio::test]
async fn people_are_refused_on_a_page() {
    let locks = Locks::new();
    let farm = start(&locks, Farm::builder()).await;
    let request = http(&locks).get(format!("{}/farm", farm.http_url())).header("accept", "text/html,*/*");
    let answer = request.bearer_auth(locks.reader.reveal()).send().await.unwrap();
    assert_eq!(answer.status(), 403);
    let text = answer.text().await.unwrap();
    assert!(text.contains("<h1>Not allowed</h1>") && text.contains("groups of the caller: web"), "{text}");
    // No page links to where its reader may not go.
    assert!(text.contains("href=\"/tests\"") && !text.contains("href=\"/farm\""), "{text}");
}

#[tokio::test]
async fn people_with_some_groups_are_led_to_the_pages_of_these() {
    let locks = Locks::new();
    let both = callers::ApiKey::generate().unwrap();
    locks.write_rules(&format!(
        "[[keys]]\nname = \"both\"\nsha256 = \"{}\"\n\n\
         [[rules]]\nkey = \"both\"\ngroups = [\"web\", \"api\"]\nrights = [\"read\"]\n",
        both.hash()
    ));
    let farm = start(&locks, Farm::builder().with("archive")).await;
    let (client, url) = (http(&locks), farm.http_url());
    let page = async |key: &callers::ApiKey, path: &str| {
        let request =
            client.get(format!("{url}{path}")).header("accept", "text/html").bearer_auth(key.reveal());
        let answer = request.send().await.unwrap();
        let (status, found) = (answer.status().as_u16(), answer.url().as_str().replacen(&url, "", 1));
        (status, found, answer.text().await.unwrap())
    };
    for (path, leads_to) in [
        ("/", "/builds?group=web"),
        ("/builds?group=&submitter=me%26you", "/builds?submitter=me%26you&group=web"),
        ("/tests", "/tests?group=web"),
        ("/mine", "/mine?group=web"),
        ("/builds?group=web&state=FINISHED", "/builds?group=web&state=FINISHED"),
    ] {
        let (status, found, text) = page(&locks.reader, path).await;
        assert_eq!((status, found.as_str()), (200, leads_to), "{text}");
    }
    let (status, _, text) = page(&both, "/builds?state=FINISHED").await;
    assert_eq!(status, 200);
    assert!(
        text.contains("href=\"/builds?state=FINISHED&amp;group=api\"") && text.contains("group=web"),
        "{text}"
    );
    for path in ["/builds?group=other", "/builds?group=web&group=other", "/farm"] {
        assert_eq!(page(&both, path).await.0, 403, "{path}");
    }
    // The API does not guess which group is meant.
    assert_eq!(answer(client.get(format!("{url}/v1/builds")), &locks.reader).await.0, 403);
}

#[tokio::test]
async fn builds_are_compared_by_those_who_may_read_both() {
    let locks = Locks::new();
    let farm = start(&locks, Farm::builder()).await;
    let build = async |group: &str| {
        let key = farm.submit(group, crate::check::request(&["true"])).await;
        farm.wait_finished(&key, SOON).await;
        key
    };
    let (first, second, foreign) = (build("web").await, build("web").await, build("other").await);
    for (a, b, expected) in [
        (first.to_string(), second.to_string(), 200),
        (first.to_string(), second.id.to_string(), 200),
        (first.to_string(), foreign.to_string(), 403),
        (foreign.to_string(), first.to_string(), 403),
        (foreign.to_string(), second.id.to_string(), 403),
        ("web".to_owned(), second.id.to_string(), 403),
    ] {
        let path = format!("{}/compare?a={a}&b={b}", farm.http_url());
        let request = http(&locks).get(path).header("accept", "text/html").bearer_auth(locks.reader.reveal());
        assert_eq!(request.send().await.unwrap().status().as_u16(), expected, "{a} {b}");
    }
}

#[tokio::test]
async fn h6_an_api_key_in_a_url_is_refused() {
    let locks = Locks::new();
    let farm = start(&locks, Farm::builder()).await;
    let url = format!("{}/v1/builds/web?key={}", farm.http_url(), locks.web.reveal());
    let (status, body) = answer(http(&locks).get(url), &locks.web).await;
    assert_eq!(status, 400, "{body}");
    assert!(body["message"].as_str().unwrap().contains("send keys in a header"), "{body}");
    let written = locks.web.reveal().replacen('f', "%66", 1);
    let url = format!("{}/v1/builds/web?key={written}", farm.http_url());
    assert_eq!(answer(http(&locks).get(url), &locks.web).await.0, 400);
}

#[tokio::test]
async fn a_client_certificate_is_a_credential() {
    let locks = Locks::new();
    let farm = start(&locks, acting::builder()).await;
    let with = async |client: &Certified| -> Result<Channel, tonic::transport::Error> {
        channel(&locks, &farm, Some(client)).await
    };
    let calls = |channel| Calls { channel, headers: bearer(None) };
    let listed = locks.authority.certify(&[CLIENT]);
    capabilities(&calls(with(&listed).await.unwrap())).await.unwrap();
    let unlisted = locks.authority.certify(&["evil.example.com"]);
    let status = capabilities(&calls(with(&unlisted).await.unwrap())).await.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated, "{status:?}");
    let forged = Authority::new().certify(&[CLIENT]);
    let refused = match with(&forged).await {
        Err(_) => true,
        Ok(channel) => capabilities(&calls(channel)).await.is_err_and(|status| status.code() != Code::Ok),
    };
    assert!(refused, "a certificate of another authority");
}

#[tokio::test]
async fn a_server_with_tls_takes_no_plain_text_and_renews_its_certificate() {
    let locks = Locks::new();
    let farm = start(&locks, acting::builder()).await;
    let plain = farm.grpc_url().replacen("grpcs://", "http://", 1);
    let channel = tonic::transport::Endpoint::from_shared(plain).unwrap().connect_lazy();
    let status = capabilities(&Calls { channel, headers: bearer(Some(&locks.web)) }).await.unwrap_err();
    assert_ne!(status.code(), Code::Unauthenticated, "{status:?}");
    let health = format!("{}/healthz", farm.http_url());
    assert!(health.starts_with("https://"), "{health}");
    let plain = http(&locks).get(health.replacen("https://", "http://", 1)).send().await;
    assert!(plain.is_err(), "{plain:?}");
    let next = Authority::new();
    let trusts_next = http_trusting(&next.pem());
    assert!(trusts_next.get(&health).send().await.is_err());
    locks.certify_server(&next);
    let renewed = async { while trusts_next.get(&health).send().await.is_err() {} };
    tokio::time::timeout(SOON, renewed).await.expect("the certificate is renewed");
}

#[tokio::test]
async fn the_command_line_has_a_credential() {
    let locks = Locks::new();
    let farm = start(&locks, acting::builder()).await;
    let run = async |key: Option<&str>| {
        let mut command = farm.command(&["--no-wait", "exec", "--", "echo", "hello"]);
        match key {
            Some(key) => command.env("FOREBAY_GATEWAY_TOKEN_FILE", locks.path(key)),
            None => command.env_remove("FOREBAY_GATEWAY_TOKEN_FILE"),
        };
        Output::of(command).await
    };
    let output = run(Some("web.key")).await;
    assert_eq!((output.code, output.stdout.as_str()), (0, "hello\n"), "{output:?}");
    let output = run(None).await;
    assert!(output.code == 2 && output.stderr.contains("send an API key or a token"), "{output:?}");
    assert!(output.stderr.contains("gateway_token_file"), "{output:?}");
    // A certificate that is not accepted is not waited for.
    let other = locks.write("other.pem", &Authority::new().pem());
    let mut command = farm.command(&["exec", "--", "echo", "hello"]);
    command.env("FOREBAY_GATEWAY_CA_FILE", other);
    let output = Output::of(command).await;
    assert!(output.code == 2 && output.stderr.contains("gateway_ca_file"), "{output:?}");
}

#[tokio::test]
async fn keys_are_made_and_checked_on_the_command_line() {
    let locks = Locks::new();
    let rules = locks.path("access.toml");
    let run = async |args: &[&str]| {
        let all: Vec<&str> = ["credential", "--rules", path(&rules)].iter().chain(args).copied().collect();
        Output::of(farm::bare_command(&all)).await
    };
    let made = run(&["new", "web-ci", "--expires", "2099-01-01T00:00:00Z"]).await;
    assert_eq!(made.code, 0, "{made:?}");
    let key = made.stdout;
    let file = locks.write("ci.key", &key);
    let shown = run(&["check", path(&file)]).await;
    assert!(shown.stdout.contains("key:web-ci") && shown.stdout.contains("groups      web"), "{shown:?}");
    assert!(
        !std::fs::read_to_string(&rules).unwrap().contains(key.trim()),
        "the key itself is stored nowhere"
    );
    for (args, says) in [
        (["new", "a b", "--expires", "2099-01-01T00:00:00Z"].as_slice(), "name \"a b\""),
        (&["new", "x", "--expires", "soon"], "expires \"soon\""),
        (&["new", "x", "--expires", "2020-01-01T00:00:00Z"], "the time of --expires has passed"),
        (&["new", "web-ci"], "there is a key web-ci already"),
        (&["check", "/nowhere"], "cannot read the credential /nowhere"),
        (&["check", path(&rules)], "the credentials are not accepted"),
    ] {
        let output = run(args).await;
        assert!(output.code == 2 && output.stderr.contains(says), "{output:?}");
    }
}

#[tokio::test]
async fn bazel_gets_the_credential_by_the_protocol_of_helpers() {
    let locks = Locks::new();
    let asked = async |uri: &str| {
        let args = ["credential-helper", "--host", "farm.example.com", "get"];
        let mut command = farm::bare_command(&args);
        command.env("FOREBAY_GATEWAY_TOKEN_FILE", locks.path("web.key"));
        let request = locks.write("request", &json!({ "uri": uri }).to_string());
        command.stdin(std::fs::File::open(request).unwrap());
        command.output().await.unwrap()
    };
    let output = asked("https://farm.example.com/build.bazel.remote.execution.v2.Execution").await;
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["headers"]["Authorization"], json!([format!("Bearer {}", locks.web.reveal())]));
    let output = asked("https://github.com/").await;
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer, json!({ "headers": {} }));
    let output = asked("nonsense").await;
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

#[tokio::test]
async fn rules_that_cannot_be_used_stop_a_gateway_at_its_start() {
    let locks = Locks::new();
    let farm = Farm::builder().only(&[]).start().await;
    let rules = locks.write("wrong.toml", "[[rules]]\nkey = \"a\"\nrights = [\"root\"]\n");
    let run = async |name: &str, value: &str| {
        let mut command = farm.command(&["--no-wait", "serve", "gateway"]);
        command.env(name, value);
        let output = Output::of(command).await;
        (output.code, output.stderr)
    };
    let (code, error) = run("FOREBAY_GATEWAY_ACCESS_FILE", path(&rules)).await;
    assert!(code == 2 && error.contains("rules[1]: unknown right \"root\""), "{code:?} {error}");
    let (code, error) = run("FOREBAY_GATEWAY_ACCESS_FILE", "/nowhere").await;
    assert!(code == 2 && error.contains("/nowhere"), "{code:?} {error}");
    let (code, error) = run("FOREBAY_TLS_CERTIFICATE_FILE", "/nowhere").await;
    assert!(code == 2 && error.contains("tls_key_file"), "{code:?} {error}");
}

#[tokio::test]
async fn a_gateway_for_other_machines_without_rules_says_so() {
    let farm = Farm::builder().only(&["gateway"]).env("FOREBAY_HTTP_LISTEN", "0.0.0.0:0").start().await;
    let gateway = farm.take("gateway");
    let log = || gateway.log_text();
    until("the warning", SOON, || log().contains("every machine that reaches it may do everything")).await;
}

#[tokio::test]
async fn an_action_that_already_runs_again_is_not_run_twice_and_stops_nothing() {
    let locks = Locks::new();
    let farm = start(&locks, acting::builder()).await;
    let web = grpc(&locks, &farm, Some(&locks.web)).await;
    let (marker, script) = waits(&farm);
    let name = execute(&locks, &farm, &web, &script).await.unwrap();
    let digest = acting::upload(&acting::remote(&farm).await, &script).await;
    let (client, url) = (http(&locks), farm.http_url());
    let again = async |group: &str| {
        let request = client.post(format!("{url}/action-again/{digest}")).bearer_auth(locks.web.reveal());
        let request =
            request.header("origin", &url).header("content-type", "application/x-www-form-urlencoded");
        let request = request.body(format!("group={group}"));
        let sent = tokio::time::timeout(SOON, request.send()).await;
        sent.expect("an answer comes").unwrap().status().as_u16()
    };
    // Both lead to the page of the action, which refuses nothing to its reader.
    let statuses = [again("web").await, again("web").await, again("other").await];
    assert_eq!(statuses, [200, 200, 403], "{name}");
    let health = client.get(format!("{url}/healthz")).send().await.unwrap();
    assert_eq!(health.status(), 200);
    std::fs::write(marker, "").unwrap();
}
