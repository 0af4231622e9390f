use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::hmac;
use serde_json::json;

use super::*;
use crate::testing::{AUDIENCE, ISSUER, SigningKey, after, claims, write_keys};

fn issuer(keys: &std::path::Path) -> Issuer {
    let source = KeySource::File(keys.to_owned());
    Issuer::new("i".into(), ISSUER.into(), &[AUDIENCE.into()], source, &[], None).unwrap()
}

/// A token that a shared secret signs.
fn shared(secret: &[u8]) -> String {
    let part = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let signed = format!("{}.{}", part(json!({ "alg": "HS256", "kid": "one" })), part(claims()));
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), signed.as_bytes());
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(tag))
}

#[tokio::test]
async fn a_token_gives_its_claims() {
    let folder = tempfile::tempdir().unwrap();
    let (path, key) = (folder.path().join("keys"), SigningKey::generate("one"));
    write_keys(&path, &[&key]);
    let mut sent = claims();
    sent["groups"] = json!(["a", "b", 3]);
    sent["admin"] = json!(true);
    sent["nested"] = json!({ "a": "b" });
    let verified = issuer(&path).verify(&key.sign(&sent)).await.unwrap();
    assert_eq!(verified.subject, "repo:acme/web");
    assert_eq!(verified.claims["repository"], ["acme/web"]);
    assert_eq!(verified.claims["groups"], ["a", "b"]);
    assert_eq!(verified.claims["admin"], ["true"]);
    assert!(verified.claims["nested"].is_empty());
}

#[tokio::test]
async fn g1_a_token_that_proves_nothing_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (path, key) = (folder.path().join("keys"), SigningKey::generate("one"));
    write_keys(&path, &[&key]);
    let issuer = issuer(&path);
    let with = |name: &str, value: serde_json::Value| {
        let mut claims = claims();
        claims[name] = value;
        key.sign(&claims)
    };
    let without = |name: &str| {
        let mut claims = claims();
        claims.as_object_mut().unwrap().remove(name);
        key.sign(&claims)
    };
    let unsigned = |header: serde_json::Value| {
        let part = |value: serde_json::Value| URL_SAFE_NO_PAD.encode(value.to_string());
        format!("{}.{}.", part(header), part(claims()))
    };
    let signed = key.sign(&claims());
    let (head, _) = signed.rsplit_once('.').unwrap();
    let refused = [
        ("expired", with("exp", json!(after(-60)))),
        ("expires at a text", with("exp", json!("tomorrow"))),
        ("not valid yet", with("nbf", json!(after(600)))),
        ("valid from a text", with("nbf", json!("tomorrow"))),
        ("for another farm", with("aud", json!("other"))),
        ("of another issuer", with("iss", json!("https://evil.example.com"))),
        ("without an end", without("exp")),
        ("without an audience", without("aud")),
        ("without an issuer", without("iss")),
        ("without a subject", without("sub")),
        ("signed by another key", SigningKey::generate("one").sign(&claims())),
        ("of an unknown key", SigningKey::generate("two").sign(&claims())),
        ("with a shared secret", shared(b"public key")),
        ("with the public key as a shared secret", shared(key.public().to_string().as_bytes())),
        ("without a signature", unsigned(json!({ "alg": "none", "kid": "one" }))),
        ("with an empty signature", unsigned(json!({ "alg": "ES256", "kid": "one" }))),
        ("with keys of its own", unsigned(json!({ "alg": "ES256", "kid": "one", "jku": "https://evil" }))),
        ("with a changed signature", format!("{head}.{}", "A".repeat(86))),
        ("with the path of a key", unsigned(json!({ "alg": "ES256", "kid": "../../dev/null" }))),
        ("no token", "a.b.c".to_owned()),
        ("nothing", String::new()),
    ];
    for (what, token) in refused {
        assert!(matches!(issuer.verify(&token).await, Err(Refusal::Invalid { .. })), "{what}");
    }
    assert!(issuer.verify(&signed).await.is_ok());
}

#[tokio::test]
async fn a_public_document_with_a_shared_secret_is_not_used() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys");
    let secret = json!({ "keys": [{ "kty": "oct", "kid": "one", "k": URL_SAFE_NO_PAD.encode("secret") }] });
    std::fs::write(&path, secret.to_string()).unwrap();
    assert!(issuer(&path).verify(&shared(b"secret")).await.is_err());
}

#[tokio::test]
async fn only_the_algorithms_of_the_issuer_are_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys");
    let all = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA"];
    for name in all {
        let key = SigningKey::of(name.parse().unwrap(), "one");
        write_keys(&path, &[&key]);
        let accepts = async |algorithms: &[&str]| {
            let algorithms: Vec<String> = algorithms.iter().map(|name| (*name).to_owned()).collect();
            let source = KeySource::File(path.clone());
            let issuer =
                Issuer::new("i".into(), ISSUER.into(), &[AUDIENCE.into()], source, &algorithms, None);
            issuer.unwrap().verify(&key.sign(&claims())).await
        };
        assert!(accepts(&[name]).await.is_ok(), "{name}");
        let others: Vec<&str> = all.into_iter().filter(|other| *other != name).collect();
        let refusal = accepts(&others).await.unwrap_err();
        assert_eq!(refusal.detail(), Some(format!("token of i: algorithm {name} is not allowed").as_str()));
        let by_default = ["RS256", "ES256", "ES384", "EdDSA"].contains(&name);
        assert_eq!(accepts(&[]).await.is_ok(), by_default, "{name}");
    }
    for shared in ["HS256", "none", "rs256", ""] {
        let source = KeySource::File(path.clone());
        assert!(Issuer::new("i".into(), ISSUER.into(), &[], source, &[shared.into()], None).is_err());
    }
}
