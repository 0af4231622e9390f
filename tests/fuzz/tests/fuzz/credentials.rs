//! What callers offer to prove who they are.

use std::time::{Duration, SystemTime};

use callers::{ApiKey, BuildTokens, token_expiry};
use fuzz_tests::{Target, fuzz};

use crate::choice::{Reader, read, seed};

const WORDS: &[&[u8]] = &[b".", b"/", b"=", b"fbk_", b"eyJ", b"{}", b"\"exp\":", b"Bearer ", b"\0"];

fn text(input: &[u8], read: impl Fn(&str) -> String) -> String {
    str::from_utf8(input).map_or_else(|_| String::new(), read)
}

fn key(input: &[u8]) -> String {
    text(input, |text| match ApiKey::parse(text) {
        Some(key) => {
            assert_eq!(key.reveal(), text.trim());
            "a key".to_owned()
        }
        None => ApiKey::is_meant(text).to_string(),
    })
}

fn token(input: &[u8]) -> String {
    text(input, |text| token_expiry(text).is_some().to_string())
}

/// The part of a token of a build that proves it, which is masked in its log.
fn proof(input: &[u8]) -> String {
    text(input, |text| {
        assert!(text.ends_with(BuildTokens::proof(text)));
        BuildTokens::proof(text).len().min(65).to_string()
    })
}

#[test]
fn credentials_are_refused_without_harm() {
    let readers: [Reader; 3] = [key, token, proof];
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("secret"), "0123456789abcdef".repeat(4)).unwrap();
    let tokens = BuildTokens::of_file(&folder.path().join("secret")).unwrap();
    let build = "web/0198c5d3-0000-7000-8000-000000000001".parse().unwrap();
    let token = tokens.issue(&build, SystemTime::UNIX_EPOCH + Duration::from_secs(4_000_000_000));
    let jwt = "eyJhbGciOiJSUzI1NiJ9.eyJleHAiOjE3MDAwMDAwMDB9.c2ln";
    let seeds = vec![seed(0, ApiKey::generate().unwrap().reveal()), seed(1, jwt), seed(2, token)];
    fuzz(&Target { name: "credentials", seeds, words: WORDS, check: &|input| read(&readers, input) });
}
