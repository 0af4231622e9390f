//! People who sign in on the pages with a real provider of `OpenID` Connect, and attackers who pretend to be another person.

use std::time::{Duration, Instant};

use farm::{Builder, Farm, OpenIdProvider, Port, SOON};
use model::{AuditKind, AuditProof, AuditRequest};
use reqwest::{Client, Response, StatusCode, header, redirect::Policy};

use crate::check::request;

/// What a browser does: it keeps cookies, and sends them to the server that gave them.
struct Browser {
    client: Client,
    cookies: Vec<(String, String, String)>,
}

impl Browser {
    fn new() -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::builder().redirect(Policy::none()).build().unwrap();
        Self { client, cookies: Vec::new() }
    }

    /// Sends a request as a browser does for its own page.
    async fn send(&mut self, method: &str, url: &str, form: Option<&str>) -> Response {
        let url: reqwest::Url = url.parse().unwrap();
        let server = url.origin().ascii_serialization();
        let own = self.cookies.iter().filter(|(of, ..)| *of == server);
        let cookies: Vec<String> = own.map(|(_, name, value)| format!("{name}={value}")).collect();
        let mut request = self.client.request(method.parse().unwrap(), url).header("accept", "text/html");
        if !cookies.is_empty() {
            request = request.header("cookie", cookies.join("; "));
        }
        if let Some(form) = form {
            let kind = "application/x-www-form-urlencoded";
            request = request.header("content-type", kind).header("origin", &server).body(form.to_owned());
        }
        let answer = request.send().await.unwrap();
        for line in answer.headers().get_all(header::SET_COOKIE) {
            let pair = line.to_str().unwrap().split(';').next().unwrap();
            let (name, value) = pair.split_once('=').unwrap();
            self.cookies.retain(|(of, known, _)| (of, known.as_str()) != (&server, name));
            if !value.is_empty() {
                self.cookies.push((server.clone(), name.to_owned(), value.to_owned()));
            }
        }
        answer
    }

    async fn get(&mut self, url: &str) -> Response {
        self.send("GET", url, None).await
    }

    fn cookie(&mut self, wanted: &str) -> Option<&mut String> {
        self.cookies.iter_mut().find(|(_, name, _)| name == wanted).map(|(.., value)| value)
    }

    fn session(&mut self) -> Option<String> {
        self.cookie("forebay_session").cloned()
    }

    /// Begins to sign in, does what the provider asks as this person, and returns the address that leads back to the farm.
    async fn at_provider(&mut self, begin: &str, person: &str) -> String {
        let mut next = location(&self.get(begin).await);
        loop {
            if next.contains("/login/local/callback?") {
                return next;
            }
            let answer = self.get(&next).await;
            if answer.status().is_redirection() {
                next = absolute(&next, &location(&answer));
                continue;
            }
            let page = answer.text().await.unwrap();
            let prompt = if page.contains("name=\"login\"") { "login" } else { "consent" };
            let form = format!("prompt={prompt}&login={person}&password=any");
            let action = between(&page, "action=\"", "\"").to_owned();
            next = absolute(&next, &location(&self.send("POST", &action, Some(&form)).await));
        }
    }
}

fn location(answer: &Response) -> String {
    assert!(answer.status().is_redirection(), "{answer:?}");
    answer.headers()[header::LOCATION].to_str().unwrap().to_owned()
}

fn absolute(base: &str, path: &str) -> String {
    base.parse::<reqwest::Url>().unwrap().join(path).unwrap().to_string()
}

fn between<'a>(text: &'a str, start: &str, end: &str) -> &'a str {
    let (_, rest) = text.split_once(start).unwrap_or_else(|| panic!("no {start} in {text}"));
    rest.split_once(end).unwrap().0
}

/// A farm at which people sign in.
struct Open {
    farm: Farm,
    provider: OpenIdProvider,
    folder: tempfile::TempDir,
    key: callers::ApiKey,
    _port: Port,
}

const RULE: &str = "[[rules]]\nissuer = \"local\"\nclaims = { groups = \"web\" }\ngroups = [\"web\"]\nrights = [\"read\", \"submit\", \"operate\"]\n";

impl Open {
    async fn start(builder: Builder) -> Self {
        let (port, folder) = (Port::reserve(), tempfile::tempdir().unwrap());
        let back = format!("http://127.0.0.1:{}/login/local/callback", port.number());
        let provider = OpenIdProvider::start(&back).await;
        let (rules, session_key) = (folder.path().join("rules.toml"), folder.path().join("session.key"));
        std::fs::write(&session_key, [5; 32]).unwrap();
        let key = callers::ApiKey::generate().unwrap();
        write_rules(&rules, &provider, &key, "8h", RULE);
        let builder = builder
            .env("FOREBAY_HTTP_LISTEN", format!("127.0.0.1:{}", port.number()))
            .env("FOREBAY_WEB_LISTEN", "127.0.0.1:0")
            .env("FOREBAY_SESSION_KEY_FILE", session_key.to_str().unwrap())
            .env("FOREBAY_GATEWAY_ACCESS_FILE", rules.to_str().unwrap());
        Self { farm: builder.start().await, provider, folder, key, _port: port }
    }

    fn rules(&self, lifetime: &str, rule: &str) {
        write_rules(&self.folder.path().join("rules.toml"), &self.provider, &self.key, lifetime, rule);
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.farm.http_url())
    }

    /// A browser in which this person has signed in.
    async fn signed_in(&self, person: &str) -> Browser {
        let mut browser = Browser::new();
        let back = browser.at_provider(&self.url("/login/local?to=/builds%3Fgroup%3Dweb"), person).await;
        let answer = browser.get(&back).await;
        assert_eq!(location(&answer), "/builds?group=web");
        browser
    }
}

/// Waits until a call is answered with this status: changed rules apply within a second.
async fn until(mut call: impl AsyncFnMut() -> StatusCode, wanted: StatusCode) {
    let end = Instant::now() + SOON;
    loop {
        let status = call().await;
        if status == wanted {
            return;
        }
        assert!(Instant::now() < end, "waited for {wanted}, the answer is {status}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn write_rules(
    path: &std::path::Path,
    provider: &OpenIdProvider,
    key: &callers::ApiKey,
    lifetime: &str,
    rule: &str,
) {
    let key = format!(
        "[[keys]]\nname = \"ci\"\nsha256 = \"{}\"\n[[rules]]\nkey = \"ci\"\ngroups = [\"web\"]\nrights = [\"read\"]\n",
        key.hash()
    );
    let text = format!("session_lifetime = \"{lifetime}\"\n{}{key}{rule}", provider.rules());
    let new = path.with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(new, path).unwrap();
}

fn builder() -> Builder {
    Farm::builder().only(&["enqueuer", "gateway", "archive"])
}

async fn events(farm: &Farm, kind: AuditKind, wanted: usize) -> Vec<model::AuditEvent> {
    let asked = AuditRequest { kind: Some(kind), ..AuditRequest::default() };
    let end = Instant::now() + SOON;
    loop {
        let found = farm.client().audit(&asked).await.unwrap().events;
        if found.len() >= wanted {
            return found.into_iter().map(|entry| entry.event).collect();
        }
        assert!(Instant::now() < end, "{found:#?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_person_signs_in_with_a_provider_at_any_replica_and_out() {
    let open = Open::start(builder()).await;
    let mut browser = Browser::new();
    let wanted = "/builds?group=web&text=a%20b";
    let to_login = location(&browser.get(&open.url(wanted)).await);
    assert_eq!(to_login, "/login?to=%2Fbuilds%3Fgroup%3Dweb%26text%3Da%2520b");
    let page = browser.get(&open.url(&to_login)).await.text().await.unwrap();
    assert!(page.contains("Sign in with Local &amp; Co") && page.contains("API key"), "{page}");
    let begin = open.url(between(&page, "class=\"button\" href=\"", "\""));
    let back = browser.at_provider(&begin, "ada.web").await;
    let answer = browser.get(&back).await;
    assert_eq!(location(&answer), wanted);
    let cookie = answer.headers()[header::SET_COOKIE].to_str().unwrap();
    for attribute in ["; HttpOnly", "; SameSite=Lax", "; Path=/", "; Max-Age=28800"] {
        assert!(cookie.contains(attribute), "{cookie}");
    }
    let page = browser.get(&open.url(wanted)).await.text().await.unwrap();
    assert!(page.contains("ada.web") && page.contains("Sign out"), "{page}");
    assert_eq!(browser.get(&open.url("/builds?group=other")).await.status(), StatusCode::FORBIDDEN);
    // Another replica, and one that has started again, know the session as well.
    let replica = open.farm.spawn("web").await;
    let elsewhere = format!("{}/v1/builds/web", replica.listening().unwrap().http.unwrap());
    let session = format!("forebay_session={}", browser.session().unwrap());
    let at = |url: &str| browser.client.get(url).header("cookie", &session).send();
    assert_eq!(at(&elsewhere).await.unwrap().status(), StatusCode::OK);
    open.farm.replace("gateway", &[]).await;
    assert_eq!(at(&open.url("/v1/builds/web")).await.unwrap().status(), StatusCode::OK);
    let page = browser.get(&open.url(wanted)).await.text().await.unwrap();
    let token = between(&page, "name=\"form_token\" value=\"", "\"");
    let answer = browser.send("POST", &open.url("/logout"), Some(&format!("form_token={token}"))).await;
    assert_eq!(location(&answer), "/login");
    assert!(browser.session().is_none());
    let login = events(&open.farm, AuditKind::Login, 1).await.remove(0);
    assert_eq!((login.who.as_str(), login.target.unwrap().as_str()), ("local:ada.web", "local"));
    let logout = events(&open.farm, AuditKind::Logout, 1).await.remove(0);
    assert_eq!((logout.who.as_str(), logout.proof), ("local:ada.web", AuditProof::Session));
}

#[tokio::test]
async fn h7_a_sign_in_belongs_to_the_browser_in_which_it_began() {
    let open = Open::start(builder()).await;
    let begin = open.url("/login/local");
    let (mut victim, mut attacker) = (Browser::new(), Browser::new());
    let theirs = attacker.at_provider(&begin, "eve.web").await;
    // The attacker leads a browser to the end of a sign-in of its own: without a beginning, and beside another one.
    assert_eq!(victim.get(&theirs).await.status(), StatusCode::BAD_REQUEST);
    let mine = victim.at_provider(&begin, "ada.web").await;
    assert_eq!(victim.get(&theirs).await.status(), StatusCode::BAD_REQUEST);
    let other_state = mine.replacen("state=", "state=x", 1);
    assert_eq!(victim.get(&other_state).await.status(), StatusCode::BAD_REQUEST);
    assert!(victim.session().is_none());
    let kept = victim.cookie("forebay_sign_in").unwrap().clone();
    assert_eq!(location(&victim.get(&mine).await), "/");
    // The code was used: also for the browser that has the beginning still.
    let server = open.farm.http_url();
    victim.cookies.push((server, "forebay_sign_in".to_owned(), kept));
    let again = victim.get(&mine).await;
    assert_eq!(again.status(), StatusCode::FORBIDDEN);
    assert!(again.text().await.unwrap().contains("invalid_grant"));
    let denied = attacker.get(&open.url("/login/local")).await;
    let state = between(&location(&denied), "state=", "&").to_owned();
    let error = format!("/login/local/callback?state={state}&error=%3Cb%3Ex&error_description=%3Cscript%3E");
    let page = attacker.get(&open.url(&error)).await.text().await.unwrap();
    assert!(page.contains("&lt;b&gt;x (&lt;script&gt;)") && !page.contains("<b>"), "{page}");
    let refusals = events(&open.farm, AuditKind::Refusal, 4).await;
    let is_said = |why: &str| {
        refusals.iter().any(|event| event.reason.as_ref().is_some_and(|reason| reason.as_str().contains(why)))
    };
    assert!(is_said("did not begin in this browser") && is_said("invalid_grant"), "{refusals:#?}");
    let record = serde_json::to_string(&refusals).unwrap();
    assert!(!record.contains(between(&mine, "code=", "&")), "{record}");
}

#[tokio::test]
async fn h8_signing_in_leads_to_no_other_server() {
    let open = Open::start(builder()).await;
    for foreign in
        ["//evil", "https://evil", "/%5Cevil", "/%09/evil", "%5C%5Cevil", "/logout", "javascript:alert(1)"]
    {
        let mut browser = Browser::new();
        let back = browser.at_provider(&open.url(&format!("/login/local?to={foreign}")), "ada.web").await;
        assert_eq!(location(&browser.get(&back).await), "/", "{foreign}");
        let form = format!("key={}&to={foreign}", open.key.reveal());
        let answer = Browser::new().send("POST", &open.url("/login"), Some(&form)).await;
        assert_eq!(location(&answer), "/", "{foreign}");
    }
}

#[tokio::test]
async fn h9_a_session_ends_with_its_time_its_rule_and_each_change_of_it() {
    let open = Open::start(builder()).await;
    let mut ada = open.signed_in("ada.web").await;
    let (session, client) = (ada.session().unwrap(), ada.client.clone());
    let calls = async |cookie: &str| {
        let request = client.get(open.url("/v1/builds/web"));
        request.header("cookie", format!("forebay_session={cookie}")).send().await.unwrap().status()
    };
    assert_eq!(calls(&session).await, StatusCode::OK);
    let flip = |at: usize| {
        let mut changed = session.clone();
        let other = if &session[at..=at] == "A" { "B" } else { "A" };
        changed.replace_range(at..=at, other);
        changed
    };
    for forged in [flip(0), flip(30), flip(session.len() - 1), session[1..].to_owned(), format!("{session}A")]
    {
        assert_eq!(calls(&forged).await, StatusCode::UNAUTHORIZED, "{forged}");
    }
    // A session is not a token, and no other cookie is a session.
    let bearer = client.get(open.url("/v1/builds/web")).bearer_auth(&session).send().await.unwrap();
    assert_eq!(bearer.status(), StatusCode::UNAUTHORIZED);
    let attempt = Browser::new().get(&open.url("/login/local")).await;
    let attempt = between(attempt.headers()[header::SET_COOKIE].to_str().unwrap(), "=", ";").to_owned();
    assert_eq!(calls(&attempt).await, StatusCode::UNAUTHORIZED);
    // Without the rule there are no rights, and the browser keeps no session that has ended.
    open.rules("8h", "");
    until(async || calls(&session).await, StatusCode::UNAUTHORIZED).await;
    let answer = ada.get(&open.url("/builds?group=web")).await;
    assert_eq!(location(&answer), "/login?to=%2Fbuilds%3Fgroup%3Dweb");
    assert!(ada.session().is_none());
    open.rules("8h", RULE);
    until(async || calls(&session).await, StatusCode::OK).await;
    open.rules("1s", RULE);
    until(async || calls(&session).await, StatusCode::UNAUTHORIZED).await;
    // Another key opens none of them.
    open.rules("8h", RULE);
    until(async || calls(&session).await, StatusCode::OK).await;
    let other_key = open.folder.path().join("other.key");
    std::fs::write(&other_key, [6; 32]).unwrap();
    open.farm.replace("gateway", &[("FOREBAY_SESSION_KEY_FILE", other_key.to_str().unwrap())]).await;
    assert_eq!(calls(&session).await, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn a_provider_that_does_not_answer_delays_nothing_for_long() {
    let open = Open::start(builder()).await;
    let begin = open.url("/login/local");
    let mut browser = Browser::new();
    let back = browser.at_provider(&begin, "ada.web").await;
    open.provider.pause();
    let start = Instant::now();
    let slow = browser.get(&back).await;
    assert_eq!(slow.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(slow.text().await.unwrap().contains("Local &amp; Co cannot be reached now"));
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    // API keys do without the provider, also in a server that has started while it is away.
    open.provider.resume();
    open.provider.kill();
    open.farm.replace("gateway", &[]).await;
    let down = Browser::new().get(&begin).await;
    assert_eq!(down.status(), StatusCode::SERVICE_UNAVAILABLE);
    let mut browser = Browser::new();
    let form = format!("key={}&to=/builds%3Fgroup%3Dweb", open.key.reveal());
    let answer = browser.send("POST", &open.url("/login"), Some(&form)).await;
    assert_eq!(location(&answer), "/builds?group=web");
    let page = browser.get(&open.url("/builds?group=web")).await.text().await.unwrap();
    assert!(page.contains("key:ci") && page.contains("Sign out"), "{page}");
    let wrong = Browser::new().send("POST", &open.url("/login"), Some("key=fbk_12")).await;
    assert_eq!(wrong.status(), StatusCode::UNAUTHORIZED);
    let no_rule = Browser::new().get(&open.url("/login/other")).await;
    assert_eq!(no_rule.status(), StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn h1_a_change_with_a_session_comes_from_a_page_of_the_farm() {
    let open = Open::start(builder()).await;
    let (mut ada, mut bob) = (open.signed_in("ada.web").await, open.signed_in("bob.web").await);
    let token = |page: &str| between(page, "name=\"form_token\" value=\"", "\"").to_owned();
    let own = token(&ada.get(&open.url("/builds?group=web")).await.text().await.unwrap());
    let foreign = token(&bob.get(&open.url("/builds?group=web")).await.text().await.unwrap());
    let key = open.farm.submit("web", request(&["true"])).await;
    let session = format!("forebay_session={}", ada.session().unwrap());
    let url = open.farm.http_url();
    let send = |path: &str, headers: &[(&str, &str)], body: &str| {
        let request = ada.client.post(open.url(path)).header("cookie", &session).body(body.to_owned());
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        async { request.send().await.unwrap().status() }
    };
    let form = ("content-type", "application/x-www-form-urlencoded");
    let (json, text) = (("content-type", "application/json"), ("content-type", "text/plain"));
    let (here, there) = (("origin", url.as_str()), ("origin", "http://evil.example.com"));
    let with = |token: &str| format!("group=web&esu=x86%3D1&sure=yes&form_token={token}");
    let build = r#"{"command": ["true"]}"#;
    let refused = [
        ("another origin", "/quota", vec![form, there], with(&own)),
        ("a page that hides its origin", "/quota", vec![form, ("origin", "null")], with(&own)),
        ("another site", "/quota", vec![form, ("sec-fetch-site", "cross-site")], with(&own)),
        ("another port of this machine", "/quota", vec![form, ("sec-fetch-site", "same-site")], with(&own)),
        ("no origin", "/quota", vec![form], with(&own)),
        ("no token", "/quota", vec![form, here], "group=web&esu=x86%3D1&sure=yes".to_owned()),
        ("the token of another session", "/quota", vec![form, here], with(&foreign)),
        ("another token", "/quota", vec![form, here], with("0")),
        ("the API without a token", "/v1/builds/web", vec![json, here], build.to_owned()),
        ("a form that is JSON", "/v1/builds/web", vec![text, there], build.to_owned()),
        (
            "a header with another token",
            "/v1/builds/web",
            vec![json, here, ("x-forebay-form-token", &foreign)],
            build.to_owned(),
        ),
    ];
    for (what, path, headers, body) in &refused {
        assert_eq!(send(path, headers, body).await, StatusCode::FORBIDDEN, "{what}");
    }
    let cancel = format!("/builds/{key}/cancel");
    assert_eq!(send(&cancel, &[form, there], "").await, StatusCode::FORBIDDEN);
    assert_eq!(send("/logout", &[form, there], "").await, StatusCode::FORBIDDEN);
    let quota = async || {
        let key = bus::QuotaOf::Group("web".parse().unwrap());
        open.farm.bus().buckets().get::<model::Quota>(&key).await.unwrap().1
    };
    assert_eq!(quota().await, None);
    // With the proof they are done; programs with a token do not need one.
    assert_eq!(send("/quota", &[form, here], &with(&own)).await, StatusCode::SEE_OTHER);
    assert!(quota().await.is_some());
    let own_header = ("x-forebay-form-token", own.as_str());
    assert_eq!(send("/v1/builds/web", &[json, here, own_header], build).await, StatusCode::CREATED);
    for path in ["/logout", "/quota", &cancel] {
        let answer = ada.get(&open.url(path)).await.status();
        assert!(answer == StatusCode::METHOD_NOT_ALLOWED || path == "/quota", "{path}: {answer}");
    }
}
