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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bazel_proves_who_it_is_by_a_key() {
    let (locks, place) = (Locks::new(), Place::new());
    // Debian's Bazel cannot speak TLS.
    let rig = start(&place, &locks.env_without_tls()).await;
    let bazel = Bazel::new(&place, "bzip2", Version::Four);
    let refused = bazel.remote(&rig, "build", &["//:bz2"]).await;
    assert_ne!(refused.code, 0, "{refused}");
    refused.assert_says("UNAUTHENTICATED: this farm has access rules");
    let built = bazel.remote(&rig, "build", &[&header(&locks.web), "//:bz2"]).await.ok();
    built.assert_none_local();
    let other = ["--copt=-DOTHER", "//:bz2"];
    let denied = bazel.remote(&rig, "build", &[&header(&locks.reader), other[0], other[1]]).await;
    // Bazel says only that its upload failed.
    assert_ne!(denied.code, 0, "{denied}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bazel_speaks_tls_and_has_a_certificate() {
    if !everything() {
        return;
    }
    if Version::Two.find().is_none() {
        eprintln!("skipped: Bazel 2.1.0 is not installed");
        return;
    }
    let (locks, place) = (Locks::new(), Place::new());
    let rig = start(&place, &locks.env()).await;
    assert!(rig.grpc().starts_with("grpcs://"), "{}", rig.grpc());
    let bazel = Bazel::new(&place, "bzip2", Version::Two);
    let authority = format!("--tls_certificate={}", locks.path("ca.pem").display());
    let refused = bazel.remote(&rig, "build", &[&authority, "//:bz2"]).await;
    assert_ne!(refused.code, 0, "{refused}");
    let client = locks.authority.certify(&[CLIENT]);
    let certificate = |name: &str, client: &farm::Certified| {
        let certificate = locks.write(&format!("{name}.pem"), &client.certificate);
        let key = locks.write(&format!("{name}.key"), &client.key);
        [
            format!("--tls_client_certificate={}", certificate.display()),
            format!("--tls_client_key={}", key.display()),
        ]
    };
    let [listed, listed_key] = certificate("client", &client);
    let built = bazel.remote(&rig, "build", &[&authority, &listed, &listed_key, "//:bz2"]).await.ok();
    built.assert_none_local();
    let [forged, forged_key] = certificate("forged", &Authority::new().certify(&[CLIENT]));
    let refused = bazel.remote(&rig, "build", &[&authority, &forged, &forged_key, "//:bz2"]).await;
    assert_ne!(refused.code, 0, "{refused}");
}
