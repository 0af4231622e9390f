//! The tests' own HTTP client, and blobs over HTTP.

use farm::Farm;
use model::BuildRequest;

use crate::check::{ended, script};

/// Creates a client; it requires a TLS configuration, which is not used.
pub(crate) fn client() -> reqwest::Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::new()
}

/// The status and the text of the answer at `url`.
pub(crate) async fn get(url: &str) -> (u16, String) {
    let answer = client().get(url).send().await.unwrap();
    (answer.status().as_u16(), answer.text().await.unwrap())
}

#[tokio::test]
async fn a_blob_in_the_store_of_another_gateway_is_found_by_digest_and_size() {
    let farm = Farm::all().await;
    let make = script("echo kept > out");
    let key = farm.submit("g", BuildRequest { outputs: vec!["out".to_owned()], ..make }).await;
    let record = ended(&farm, &key).await;
    let output = &record.result().unwrap().outputs[0];
    let data = farm.folder().join("second");
    let grpc = farm.grpc_url();
    let env = [("FOREBAY_DATA", data.to_str().unwrap()), ("FOREBAY_CAS_URL", grpc.as_str())];
    let second = farm.spawn_with_env("gateway", &env).await;
    let near = format!("{}/v1/blobs/{}", farm.http_url(), output.digest);
    let far = format!("{}/v1/blobs/{}", second.listening().unwrap().http.unwrap(), output.digest);
    let kept = (200, "kept\n".to_owned());
    assert_eq!(get(&near).await, kept);
    let (status, error) = get(&far).await;
    assert!(status == 404 && error.contains("its size is needed"), "{status} {error}");
    for url in [&near, &far] {
        assert_eq!(get(&format!("{url}?size_bytes={}", output.size_bytes)).await, kept);
        for invalid in ["size_bytes=x", "size=5"] {
            let (status, error) = get(&format!("{url}?{invalid}")).await;
            assert_eq!(status, 400, "{error}");
        }
    }
    assert_eq!(get(&format!("{near}?size_bytes=1")).await.0, 404);
}
