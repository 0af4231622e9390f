//! A provider that lies, at which this farm lets people sign in.

use std::{collections::HashMap, net::SocketAddr};

use axum::{
    Form, Json, Router,
    extract::State,
    http::{HeaderMap, StatusCode, header::AUTHORIZATION},
    response::{IntoResponse as _, Response},
    routing::{get, post},
};
use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::*;
use crate::{
    CallerSettings, Offered,
    sealing::KeyMaterial,
    testing::{SigningKey, after},
};

const BACK: &str = "https://farm.example.com/login/dex/callback";
const CLIENT: &str = "forebay";

/// A server that answers what the test says.
#[derive(Clone)]
struct Provider(Arc<Inner>);

struct Inner {
    address: SocketAddr,
    key: SigningKey,
    /// What it answers to the next exchange of a code.
    answer: Mutex<Option<(StatusCode, Value)>>,
    /// Fields of the last exchange.
    asked: Mutex<HashMap<String, String>>,
    /// The header by which the client of the last exchange proved who it is.
    proof: Mutex<Option<String>>,
}

impl Provider {
    async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let inner = Inner {
            address: listener.local_addr().unwrap(),
            key: SigningKey::generate("one"),
            answer: Mutex::default(),
            asked: Mutex::default(),
            proof: Mutex::default(),
        };
        let provider = Self(Arc::new(inner));
        let routes = Router::new()
            .route("/.well-known/openid-configuration", get(Self::describe))
            .route(
                "/keys",
                get(async |State(Self(it)): State<Self>| Json(json!({ "keys": [it.key.public()] }))),
            )
            .route("/token", post(Self::token))
            .with_state(provider.clone());
        tokio::spawn(async { axum::serve(listener, routes).await });
        provider
    }

    fn url(&self) -> String {
        format!("http://{}", self.0.address)
    }

    #[expect(clippy::unused_async, reason = "axum calls asynchronous functions")]
    async fn describe(State(it): State<Self>) -> Json<Value> {
        let url = it.url();
        Json(json!({
            "issuer": url,
            "authorization_endpoint": format!("{url}/auth"),
            "token_endpoint": format!("{url}/token"),
            "jwks_uri": format!("{url}/keys"),
        }))
    }

    #[expect(clippy::unused_async, reason = "axum calls asynchronous functions")]
    async fn token(
        State(Self(it)): State<Self>,
        headers: HeaderMap,
        Form(fields): Form<HashMap<String, String>>,
    ) -> Response {
        *it.asked.lock() = fields;
        *it.proof.lock() = headers.get(AUTHORIZATION).map(|value| value.to_str().unwrap().to_owned());
        let (status, answer) = it.answer.lock().take().unwrap();
        (status, Json(answer)).into_response()
    }

    /// Answers the next exchange with an ID token of these claims.
    fn will_say(&self, claims: &Value) {
        let token = self.0.key.sign(claims);
        self.will_answer(
            StatusCode::OK,
            json!({ "access_token": "a", "token_type": "Bearer", "id_token": token }),
        );
    }

    fn will_answer(&self, status: StatusCode, answer: Value) {
        *self.0.answer.lock() = Some((status, answer));
    }
}

struct Farm {
    folder: tempfile::TempDir,
    provider: Provider,
    callers: Callers,
}

impl Farm {
    async fn start() -> Self {
        Self::start_as("").await
    }

    /// With more fields of `login`.
    async fn start_as(login: &str) -> Self {
        let (folder, provider) = (tempfile::tempdir().unwrap(), Provider::start().await);
        let path = folder.path().join("rules.toml");
        std::fs::write(folder.path().join("secret"), "s e/cret\n").unwrap();
        let login = login.replace("FOLDER", &folder.path().display().to_string());
        let rules = format!(
            r#"
            [[issuers]]
            name = "dex"
            url = "{}"
            login = {{ client_id = "{CLIENT}"{login} }}

            [[rules]]
            issuer = "dex"
            claims = {{ groups = "web-*" }}
            groups = ["web"]
            rights = ["read"]
            "#,
            provider.url()
        );
        std::fs::write(&path, rules).unwrap();
        let sessions = Sessions::of(&KeyMaterial::of(&[7; 32]));
        let callers =
            Callers::of_file(&path, CallerSettings { sessions, ..CallerSettings::default() }).unwrap();
        Self { folder, provider, callers }
    }

    fn sign_in(&self) -> SignIn {
        SignIn::of(&self.callers).unwrap()
    }

    /// Begins to sign in; returns the parameters with which the browser is sent away, and what it keeps.
    async fn begin(&self) -> (HashMap<String, String>, String) {
        let begun = self.sign_in().begin("dex", BACK, "/builds").await.unwrap();
        let (address, query) = begun.url.split_once('?').unwrap();
        assert_eq!(address, format!("{}/auth", self.provider.url()));
        let pairs = query.split('&').map(|pair| pair.split_once('=').unwrap());
        (pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(), begun.attempt)
    }

    async fn finish(&self, attempt: &str, state: &str) -> Result<SignedIn, SignInError> {
        let answer = Answer { state, code: Some("c0de"), ..Answer::default() };
        self.sign_in().finish("dex", BACK, Some(attempt), &answer).await
    }

    /// Signs in with an ID token that the test changes.
    async fn with(&self, change: impl FnOnce(&mut Value)) -> Result<SignedIn, SignInError> {
        let (sent, attempt) = self.begin().await;
        let mut claims = json!({
            "iss": self.provider.url(), "aud": CLIENT, "sub": "17", "exp": after(300), "nonce": sent["nonce"],
            "groups": ["web-a", "other"], "email": "ada@example.com",
        });
        change(&mut claims);
        self.provider.will_say(&claims);
        self.finish(&attempt, &sent["state"]).await
    }

    async fn caller(&self, session: &str) -> Result<Arc<Caller>, Refusal> {
        self.callers.identify(Offered { session: Some(session), ..Offered::default() }).await
    }
}

#[tokio::test]
async fn a_person_signs_in_by_what_the_rules_know_of_claims() {
    let farm = Farm::start().await;
    let signed_in = farm.with(|_| ()).await.unwrap();
    assert_eq!((signed_in.caller.name.as_str(), signed_in.wanted.as_str()), ("dex:17", "/builds"));
    let caller = farm.caller(&signed_in.session).await.unwrap();
    assert_eq!((caller.name.as_str(), caller.shown_name()), ("dex:17", "ada@example.com"));
    assert!(caller.rights.groups.has(&"web".parse().unwrap()) && caller.is_in_session());
    let token = caller.form_token().unwrap().to_owned();
    assert!(caller.has_form_token(&token) && !caller.has_form_token(""));
    let again = farm.with(|_| ()).await.unwrap();
    let other = farm.caller(&again.session).await.unwrap();
    assert!(!other.has_form_token(&token), "a token of another session");
}

#[tokio::test]
async fn a_code_is_exchanged_with_the_proof_that_this_server_asked_for_it() {
    let farm = Farm::start().await;
    let (sent, attempt) = farm.begin().await;
    assert_eq!((sent["response_type"].as_str(), sent["code_challenge_method"].as_str()), ("code", "S256"));
    farm.provider.will_answer(
        StatusCode::BAD_REQUEST,
        json!({ "error": "invalid_grant", "error_description": "<b>used\u{7}" }),
    );
    let error = farm.finish(&attempt, &sent["state"]).await.err().unwrap();
    assert_eq!(error.to_string(), "dex did not sign you in: invalid_grant: <b>used");
    let asked = farm.provider.0.asked.lock().clone();
    let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(asked["code_verifier"].as_bytes()));
    assert_eq!((challenge.as_str(), asked["code"].as_str()), (sent["code_challenge"].as_str(), "c0de"));
    assert_eq!((asked["client_id"].as_str(), asked["redirect_uri"].as_str()), (CLIENT, BACK));
    assert_eq!(asked["grant_type"], "authorization_code");
    assert_eq!(*farm.provider.0.proof.lock(), None);
    let (_, other) = farm.begin().await;
    assert!(matches!(farm.finish(&other, &sent["state"]).await, Err(SignInError::Foreign { .. })));
}

#[tokio::test]
async fn a_client_with_a_secret_sends_it_in_the_header_only() {
    let farm = Farm::start_as(r#", client_secret_file = "FOLDER/secret""#).await;
    let signed_in = farm.with(|_| ()).await.unwrap();
    assert_eq!(signed_in.caller.name, "dex:17");
    let proof = farm.provider.0.proof.lock().clone().unwrap();
    assert_eq!(proof, format!("Basic {}", STANDARD.encode(format!("{CLIENT}:s+e%2Fcret"))));
    let asked = farm.provider.0.asked.lock().clone();
    assert!(!asked.contains_key("client_secret") && !asked.contains_key("client_id"), "{asked:?}");
}

#[tokio::test]
async fn h7_the_identity_of_another_person_is_refused() {
    let farm = Farm::start().await;
    let earlier = farm.begin().await.0["nonce"].clone();
    let untrusted: [(&str, &str, Value); 12] = [
        ("of another sign-in", "nonce", json!(earlier)),
        ("without a sign-in", "nonce", json!(null)),
        ("for several sign-ins", "nonce", json!(["a", "b"])),
        ("for another client", "aud", json!("other")),
        ("for no client", "aud", json!([])),
        ("for this and another client", "aud", json!([CLIENT, "other"])),
        ("for another party", "azp", json!("other")),
        ("of another issuer", "iss", json!("https://evil.example.com")),
        ("without an issuer", "iss", json!(null)),
        ("that has expired", "exp", json!(after(-60))),
        ("that never ends", "exp", json!(null)),
        ("of no person", "sub", json!(null)),
    ];
    for (what, claim, value) in untrusted {
        let result = farm.with(|claims| claims[claim] = value).await;
        assert!(matches!(result, Err(SignInError::Untrusted { .. })), "{what}");
    }
    let no_rule = farm.with(|claims| claims["groups"] = json!(["other"])).await.err().unwrap();
    assert_eq!(no_rule.to_string(), "dex knows you as 17, and no access rule of this farm is for you");
    assert!(farm.with(|claims| claims["azp"] = json!(CLIENT)).await.is_ok());
    let (sent, attempt) = farm.begin().await;
    let forged = SigningKey::generate("one").sign(&json!({
        "iss": farm.provider.url(), "aud": CLIENT, "sub": "17", "exp": after(300), "nonce": sent["nonce"], "groups": "web-a",
    }));
    farm.provider.will_answer(
        StatusCode::OK,
        json!({ "access_token": "a", "token_type": "Bearer", "id_token": forged }),
    );
    assert!(matches!(farm.finish(&attempt, &sent["state"]).await, Err(SignInError::Untrusted { .. })));
}

#[tokio::test]
async fn an_answer_without_an_identity_is_refused() {
    let farm = Farm::start().await;
    for answer in [json!({ "access_token": "a", "token_type": "Bearer" }), json!({}), json!("<html>")] {
        let (sent, attempt) = farm.begin().await;
        farm.provider.will_answer(StatusCode::OK, answer);
        let error = farm.finish(&attempt, &sent["state"]).await.err().unwrap();
        assert!(matches!(error, SignInError::Refused { .. } | SignInError::Unreachable { .. }), "{error}");
    }
    let (sent, attempt) = farm.begin().await;
    let denied = Answer {
        state: &sent["state"],
        error: Some("access_denied"),
        error_description: Some("the person said <i>no</i>"),
        ..Answer::default()
    };
    let error = farm.sign_in().finish("dex", BACK, Some(&attempt), &denied).await.err().unwrap();
    assert_eq!(error.to_string(), "dex did not sign you in: access_denied (the person said <i>no</i>)");
    let mixed_up = Answer { issuer: Some("https://evil.example.com"), code: Some("c"), ..denied };
    let error = farm.sign_in().finish("dex", BACK, Some(&attempt), &mixed_up).await.err().unwrap();
    assert!(matches!(error, SignInError::Foreign { .. }), "{error}");
}

#[tokio::test]
async fn the_token_of_a_sign_in_is_not_one_of_a_program() {
    let farm = Farm::start().await;
    let token = farm.provider.0.key.sign(&json!({
        "iss": farm.provider.url(), "aud": CLIENT, "sub": "17", "exp": after(300), "groups": "web-a",
    }));
    let header = format!("Bearer {token}");
    let offered = Offered { authorization: Some(header.as_bytes()), ..Offered::default() };
    assert!(farm.callers.identify(offered).await.is_err());
    let session = farm.with(|_| ()).await.unwrap().session;
    let header = format!("Bearer {session}");
    let offered = Offered { authorization: Some(header.as_bytes()), ..Offered::default() };
    assert!(farm.callers.identify(offered).await.is_err(), "a session proves nothing elsewhere");
    for forged in [token.as_str(), "", "fbb_1/web/1/0", &"A".repeat(5000)] {
        assert!(farm.caller(forged).await.is_err(), "{forged:.20}");
    }
}

#[tokio::test]
async fn a_person_with_too_many_groups_is_asked_for_fewer() {
    let farm = Farm::start().await;
    let groups: Vec<String> = (0..200).map(|number| format!("web-{number:030}")).collect();
    let result = farm.with(|claims| claims["groups"] = json!(groups)).await;
    assert_eq!(result.err(), Some(SignInError::TooLong));
    let groups: Vec<String> =
        (0..200).map(|number| format!("other-{number:030}")).chain(["web-a".to_owned()]).collect();
    // Of a claim, 200 values are read; no rule is for the first ones.
    let result = farm.with(|claims| claims["groups"] = json!(groups[10..])).await;
    assert!(result.is_ok(), "{:?}", result.err());
}

#[tokio::test]
async fn rules_that_let_people_sign_in_need_a_key() {
    let farm = Farm::start().await;
    let error =
        Callers::of_file(&farm.folder.path().join("rules.toml"), CallerSettings::default()).unwrap_err();
    assert!(error.to_string().contains("session_key_file"), "{error}");
}
