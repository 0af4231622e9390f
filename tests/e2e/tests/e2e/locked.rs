//! Bazel against gateways with TLS and access rules.

use e2e_tests::{Bazel, Place, Rig, Version, everything};
use farm::{Authority, CLIENT, Locks};

async fn start(place: &Place, env: &[(&'static str, String)]) -> Rig {
    let env: Vec<(&str, &str)> = env.iter().map(|(name, value)| (*name, value.as_str())).collect();
    Rig::start(place, &env).await
}

fn header(key: &callers::ApiKey) -> String {
    format!("--remote_header=authorization=Bearer {}", key.reveal())
}

/// A farm with TLS and access rules, and a Bazel that trusts its authority by the option that is returned.
async fn locked(locks: &Locks, place: &Place) -> Option<(Rig, Bazel, String)> {
    if !Version::Four.has_tls() {
        eprintln!("skipped: the libraries that give Bazel TLS are not installed");
        return None;
    }
    let rig = start(place, &locks.env()).await;
    assert!(rig.grpc().starts_with("grpcs://"), "{}", rig.grpc());
    let authority = format!("--tls_certificate={}", locks.path("ca.pem").display());
    Some((rig, Bazel::new(place, "bzip2", Version::Four), authority))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bazel_proves_who_it_is_by_a_key() {
    let (locks, place) = (Locks::new(), Place::new());
    let Some((rig, bazel, authority)) = locked(&locks, &place).await else { return };
    let refused = bazel.remote(&rig, "build", &[&header(&locks.web), "//:bz2"]).await;
    assert_ne!(refused.code, 0, "the authority is not known: {refused}");
    let refused = bazel.remote(&rig, "build", &[&authority, "//:bz2"]).await;
    assert_ne!(refused.code, 0, "{refused}");
    refused.assert_says("UNAUTHENTICATED: this farm has access rules");
    let built = bazel.remote(&rig, "build", &[&authority, &header(&locks.web), "//:bz2"]).await.ok();
    built.assert_none_local();
    let other = ["--copt=-DOTHER", "//:bz2"];
    let denied = bazel.remote(&rig, "build", &[&authority, &header(&locks.reader), other[0], other[1]]).await;
    // Bazel says only that its upload failed.
    assert_ne!(denied.code, 0, "{denied}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bazel_proves_who_it_is_by_a_certificate() {
    let (locks, place) = (Locks::new(), Place::new());
    let Some((rig, bazel, authority)) = locked(&locks, &place).await else { return };
    let options = |authority: &Authority, name: &str| {
        let client = authority.certify(&[name]);
        let certificate = locks.write("client.pem", &client.certificate);
        let key = locks.write("client.key", &client.key);
        [
            format!("--tls_client_certificate={}", certificate.display()),
            format!("--tls_client_key={}", key.display()),
        ]
    };
    let strangers = [
        (&Authority::new(), CLIENT, "SSL routines"),
        (&locks.authority, "evil.example.com", "UNAUTHENTICATED"),
    ];
    for (issuer, name, answer) in strangers {
        let [certificate, key] = options(issuer, name);
        let refused = bazel.remote(&rig, "build", &[&authority, &certificate, &key, "//:bz2"]).await;
        assert_ne!(refused.code, 0, "{refused}");
        refused.assert_says(answer);
    }
    let [certificate, key] = options(&locks.authority, CLIENT);
    let built = bazel.remote(&rig, "build", &[&authority, &certificate, &key, "//:bz2"]).await.ok();
    built.assert_none_local();
}

/// Bazel 2.1 has no client certificates, and sends no headers when it asks for the capabilities.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bazel_speaks_tls() {
    if !everything() {
        return;
    }
    if Version::Two.find().is_none() {
        eprintln!("skipped: Bazel 2.1.0 is not installed");
        return;
    }
    let (locks, place) = (Locks::new(), Place::new());
    let of_tls =
        |name: &str| ["_TLS_CERTIFICATE_", "_TLS_KEY_", "_GATEWAY_CA_"].iter().any(|it| name.contains(it));
    let env: Vec<_> = locks.env().into_iter().filter(|(name, _)| of_tls(name)).collect();
    let rig = start(&place, &env).await;
    assert!(rig.grpc().starts_with("grpcs://"), "{}", rig.grpc());
    let bazel = Bazel::new(&place, "bzip2", Version::Two);
    let refused = bazel.remote(&rig, "build", &["//:bz2"]).await;
    assert_ne!(refused.code, 0, "the authority is not known: {refused}");
    let authority = format!("--tls_certificate={}", locks.path("ca.pem").display());
    let built = bazel.remote(&rig, "build", &[&authority, "//:bz2"]).await.ok();
    built.assert_none_local();
}
