//! The farm satisfies every statement of the Remote Execution API, and each check detects its fault.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]

use std::collections::BTreeSet;

use conform::{
    Options, Report, Verdict,
    fault::{Fault, proxy},
};
use farm::{Guard, SOON, Up};
use futures::{StreamExt as _, stream};
use model::{DigestFunction, Endpoints};
use reapi::execution::{
    BatchUpdateBlobsRequest, batch_update_blobs_request::Request,
    content_addressable_storage_client::ContentAddressableStorageClient,
};
use tempfile::TempDir;
use tonic::Code;

/// A separate farm for a test.
struct Place {
    _up: Up,
    endpoints: Endpoints,
    _guard: Guard,
    _folder: TempDir,
}

impl Place {
    async fn new(env: &[(&str, &str)]) -> Self {
        // Readable by the user that actions run as.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        let folder = tempfile::Builder::new().prefix("forebay-conform-").permissions(open).tempdir().unwrap();
        let guard = Guard::start(folder.path());
        let mut up = Up::start(folder.path(), &guard, &["--grpc-port", "0"], env).await;
        let endpoints = up.endpoints().await;
        Self { _up: up, endpoints, _guard: guard, _folder: folder }
    }

    fn grpc(&self) -> String {
        self.endpoints.grpc.clone().expect("the farm serves the Remote Execution API")
    }
}

/// Describes all results that are not a pass.
fn others(report: &Report) -> String {
    report.text(false)
}

/// Writes to a store until it accepts no more data.
async fn fill(endpoint: &str) {
    let url = endpoint.replacen("grpc://", "http://", 1);
    let mut cas = ContentAddressableStorageClient::connect(url).await.unwrap();
    let deadline = std::time::Instant::now() + 3 * SOON;
    let (mut number, mut size) = (0_u64, 1 << 20);
    while size >= 64 << 10 {
        let mut data = vec![0; size];
        data[..8].copy_from_slice(&number.to_le_bytes());
        number += 1;
        let digest = DigestFunction::Sha256.digest(&data);
        let digest = reapi::digest::to_proto(&digest);
        let request = Request { digest: Some(digest), data, compressor: 0 };
        let request = BatchUpdateBlobsRequest { requests: vec![request], ..Default::default() };
        let code = match cas.batch_update_blobs(request).await {
            Ok(answer) => answer.into_inner().responses[0].status.as_ref().map_or(0, |status| status.code),
            Err(status) => status.code().into(),
        };
        if code == i32::from(Code::ResourceExhausted) {
            size /= 2;
        }
        assert!(std::time::Instant::now() < deadline, "the store never fills");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_farm_holds_to_every_statement() {
    let farm = Place::new(&[]).await;
    let options =
        Options { endpoint: farm.grpc(), cache_endpoint: farm.endpoints.cas.clone(), ..Options::default() };
    let report = conform::run(options, |_| {}).await.unwrap();
    assert_eq!(report.fail, 0, "{}", others(&report));
    // Only merging and permissions may be skipped.
    let skipped: BTreeSet<u16> =
        report.results.iter().filter(|one| one.result == Verdict::Skip).map(|one| one.id).collect();
    let allowed = BTreeSet::from([80, 102, 153]);
    assert!(skipped.is_subset(&allowed), "{}", others(&report));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_store_says_so() {
    let env = [("FOREBAY_CAS_BYTES_MAX", "40000000")];
    let farm = Place::new(&env).await;
    fill(&farm.grpc()).await;
    let other = Place::new(&[]).await;
    let options = Options {
        endpoint: other.grpc(),
        full_endpoint: Some(farm.grpc()),
        only: BTreeSet::from([19, 51, 64, 68]),
        ..Options::default()
    };
    let report = conform::run(options, |_| {}).await.unwrap();
    assert_eq!((report.pass, report.fail, report.skip), (4, 0, 0), "{}", others(&report));
}

/// Runs the check for a fault against a server with that fault.
async fn with_fault(endpoint: &str, fault: Fault) -> (Fault, Report) {
    let upstream = endpoint.replacen("grpc://", "http://", 1).parse().unwrap();
    let proxy = proxy(upstream, fault).await.unwrap();
    let only = BTreeSet::from([fault.caught_by()]);
    let options = Options { endpoint: proxy.endpoint.clone(), only, ..Options::default() };
    (fault, conform::run(options, |_| {}).await.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_fault_fails_its_check() {
    let farm = Place::new(&[]).await;
    let endpoint = farm.grpc();
    // The order of priorities is checked on an otherwise idle farm.
    let (alone, beside): (Vec<Fault>, Vec<Fault>) =
        Fault::ALL.iter().copied().partition(|fault| *fault == Fault::PriorityInverted);
    let mut reports: Vec<(Fault, Report)> =
        stream::iter(beside).map(|fault| with_fault(&endpoint, fault)).buffer_unordered(8).collect().await;
    for fault in alone {
        reports.push(with_fault(&endpoint, fault).await);
    }
    assert_eq!(reports.len(), Fault::ALL.len());
    let unnoticed: Vec<String> = reports
        .iter()
        .filter(|(fault, report)| {
            report.result(fault.caught_by()).is_none_or(|one| one.result != Verdict::Fail)
        })
        .map(|(fault, report)| format!("{fault:?}: {}", report.text(true)))
        .collect();
    assert!(unnoticed.is_empty(), "{unnoticed:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fault_fails_no_other_check() {
    let farm = Place::new(&[]).await;
    let fault = Fault::PrioritiesFromZero;
    let upstream = farm.grpc().replacen("grpc://", "http://", 1).parse().unwrap();
    let proxy = proxy(upstream, fault).await.unwrap();
    let only: BTreeSet<u16> =
        Fault::ALL.iter().filter(|other| **other != fault).map(|other| other.caught_by()).collect();
    let options = Options { endpoint: proxy.endpoint.clone(), only, ..Options::default() };
    let report = conform::run(options, |_| {}).await.unwrap();
    assert_eq!(report.pass, Fault::ALL.len() - 1, "{}", others(&report));
}
