use jsonwebtoken::{EncodingKey, Header, encode};
use serde_json::json;

use super::*;
use crate::testing::{AUDIENCE, ISSUER, SigningKey, after, claims, write_keys};

fn issuer(keys: &std::path::Path) -> Issuer {
    let source = KeySource::File(keys.to_owned());
    Issuer::new("i".into(), ISSUER.into(), &[AUDIENCE.into()], source, &[], None).unwrap()
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
    let shared =
        |header: Header| encode(&header, &claims(), &EncodingKey::from_secret(b"public key")).unwrap();
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
        ("with a shared secret", shared(Header { kid: Some("one".into()), ..Header::default() })),
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
    let header = Header { kid: Some("one".into()), ..Header::default() };
    let token = encode(&header, &claims(), &EncodingKey::from_secret(b"secret")).unwrap();
    assert!(issuer(&path).verify(&token).await.is_err());
}

#[test]
fn unknown_kinds_of_keys_are_left_out() {
    let key = SigningKey::generate("one").public();
    let document = json!({ "keys": [{ "kty": "new" }, key, 1] });
    let keys = read_keys(document.to_string().as_bytes()).unwrap();
    assert!(find(&keys, Some("one")).is_some());
    assert!(read_keys(b"[]").is_err());
}
