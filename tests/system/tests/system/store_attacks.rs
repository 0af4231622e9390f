//! Attacks on the store of blobs by a caller with a valid key of its own.

use std::{
    collections::BTreeMap,
    fs,
    ops::Range,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use farm::{Builder, CLIENT, Farm, Locks, SOON};
use model::BlobDigest;
use reapi::{
    execution::{BatchReadBlobsRequest, BatchUpdateBlobsRequest, batch_update_blobs_request},
    stream::WriteRequest,
};
use tonic::Code;

use crate::{
    acting,
    locked::{Calls, SHA256, grpc, http, start},
    zones::{APART, UNLIKE, execute, is_missing, proto, reads, upload, upload_action, zoned},
};

/// The most blobs that zone `other` may have.
const MOST: u64 = 100;

fn limited() -> Builder {
    let limits = format!(r#"{{"other":{{"blobs_max":{MOST}}}}}"#);
    zoned(Farm::builder().only(&["gateway", "cas"]), APART).env("FOREBAY_ZONE_LIMITS", limits)
}

fn tiny(n: u64) -> Vec<u8> {
    format!("{n}").into_bytes()
}

/// Uploads tiny blobs in one batch. Returns how many were refused, and one of the refusals.
async fn flood(calls: &Calls, numbers: Range<u64>) -> (u64, Option<reapi::rpc::Status>) {
    let request = |n: u64| batch_update_blobs_request::Request {
        digest: Some(proto(&SHA256.digest(&tiny(n)))),
        data: tiny(n),
        ..Default::default()
    };
    let request = BatchUpdateBlobsRequest { requests: numbers.map(request).collect(), ..Default::default() };
    let answer = calls.cas().batch_update_blobs(request).await.unwrap().into_inner();
    let refused: Vec<_> =
        answer.responses.into_iter().filter_map(|it| it.status).filter(|it| it.code != 0).collect();
    (u64::try_from(refused.len()).unwrap(), refused.into_iter().next())
}

/// The metrics of the service that evicts, when they are as wanted.
async fn evictor_shows(
    (farm, locks): (&Farm, &Locks),
    wanted: impl Fn(&BTreeMap<String, u64>) -> bool,
) -> BTreeMap<String, u64> {
    let begun = Instant::now();
    // Metrics are for those who have a certificate of the farm.
    drop(http(locks)); // installs what clients encrypt with
    let own = locks.authority.certify(&[CLIENT]);
    let identity = reqwest::Identity::from_pem(format!("{}{}", own.certificate, own.key).as_bytes()).unwrap();
    let authority = reqwest::Certificate::from_pem(locks.authority.pem().as_bytes()).unwrap();
    let client = reqwest::Client::builder().tls_certs_only([authority]).identity(identity).build().unwrap();
    loop {
        let urls = farm.metrics_urls();
        let (_, url) = urls.iter().find(|(name, _)| name.starts_with("cas")).unwrap();
        let text = client.get(url).send().await.unwrap().text().await.unwrap();
        let sample = |line: &str| {
            let (name, value) = line.strip_prefix("forebay_cas_zone_")?.rsplit_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        };
        let found = text.lines().filter_map(sample).collect();
        if wanted(&found) {
            return found;
        }
        assert!(begun.elapsed() < SOON, "{found:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn of_other(found: &BTreeMap<String, u64>, name: &str) -> u64 {
    found.get(&format!("{name}{{zone=\"other\"}}")).copied().unwrap_or_default()
}

/// The files below a folder of the store.
fn files(farm: &Farm, folder: &str) -> Vec<PathBuf> {
    fn below(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            if entry.path().is_dir() { below(&entry.path(), found) } else { found.push(entry.path()) }
        }
    }
    let mut found = Vec::new();
    below(&farm.data().join("cas").join(folder), &mut found);
    found
}

#[tokio::test]
async fn b1_a_zone_that_fills_the_store_with_tiny_blobs_is_refused_and_others_go_on() {
    let locks = Locks::new();
    let farm = start(&locks, limited()).await;
    let (web, other) =
        (grpc(&locks, &farm, Some(&locks.web)).await, grpc(&locks, &farm, Some(&locks.other)).await);
    let of_web = upload(&web, &[b"of web 1", b"of web 2"]).await;
    flood(&other, 0..MOST).await;
    evictor_shows((&farm, &locks), |found| of_other(found, "full") == 1).await;
    // The gateway hears of it a moment later.
    let (mut next, begun) = (MOST, Instant::now());
    let refusal = loop {
        if let (_, Some(refusal)) = flood(&other, next..next + 1).await {
            break refusal;
        }
        next += 1;
        assert!(begun.elapsed() < SOON, "{next} blobs are stored");
    };
    assert_eq!(refusal.code, i32::from(Code::ResourceExhausted), "{refusal:?}");
    assert!(refusal.message.contains("zone other") && refusal.message.contains("zone_limits"), "{refusal:?}");
    assert!(reapi::status::retry_delay(&refusal).is_some());
    // No call stores more for it. It may store again what it has.
    let stored = files(&farm, "zones/other").len();
    assert_eq!(flood(&other, 10_000..10_200).await.0, 200);
    assert_eq!(flood(&other, 0..MOST).await.0, 0);
    let content = vec![5; 200_000];
    let digest = SHA256.digest(&content);
    let write = WriteRequest {
        resource_name: format!(
            "uploads/5f0c3a53-8a3e-4a52-9f1e-3d3ec1a6a002/blobs/{}/{}",
            digest.hex(),
            digest.size
        ),
        data: content.into(),
        finish_write: true,
        ..WriteRequest::default()
    };
    let status = other.bytes().write(futures::stream::iter([write])).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    assert_eq!(files(&farm, "zones/other").len(), stored);
    assert!(!files(&farm, "cas").iter().any(|path| path.to_string_lossy().contains(&digest.hex())));
    // The other tenant reads and stores as before.
    for blob in &of_web {
        assert_eq!(reads(&web, blob).await.first(), Some(&("BatchReadBlobs", None)));
    }
    assert_eq!(flood(&web, 50_000..51_000).await.0, 0);
    // What it has is known to the next process that evicts, and to operators.
    farm.replace("cas", &[]).await;
    let found = evictor_shows((&farm, &locks), |found| of_other(found, "full") == 1).await;
    assert_eq!(of_other(&found, "blobs"), u64::try_from(stored).unwrap());
    assert_eq!(of_other(&found, "bytes"), of_other(&found, "blobs") * 4096);
    let doctor = farm.cli(&["doctor"]).await;
    assert!(
        doctor.stdout.contains("zone other has") && doctor.stdout.contains("refused"),
        "{}",
        doctor.stdout
    );
    assert_eq!(flood(&other, 20_000..20_010).await.0, 10);
}

#[tokio::test]
async fn b1_a_zone_that_goes_on_storing_loses_its_own_oldest_blobs() {
    let locks = Locks::new();
    let builder = limited().env("FOREBAY_CAS_KEEP_SECONDS", "1").env("FOREBAY_CAS_KEEP_MIN_SECONDS", "1");
    let farm = start(&locks, builder).await;
    let (web, other) =
        (grpc(&locks, &farm, Some(&locks.web)).await, grpc(&locks, &farm, Some(&locks.other)).await);
    let of_web = upload(&web, &[b"older than all of the others"]).await.remove(0);
    let (mut next, begun) = (0, Instant::now());
    while next < 2 * MOST {
        // A client tries again what is refused.
        if flood(&other, next..next + 20).await.0 == 0 {
            next += 20;
        } else {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert!(begun.elapsed() < 2 * SOON, "{next} blobs were stored");
    }
    evictor_shows((&farm, &locks), |found| {
        let marks = u64::try_from(files(&farm, "zones/other").len()).unwrap();
        // A mark that is reported after a scan has counted it counts twice until the next scan.
        marks <= MOST && (1..=MOST).contains(&of_other(found, "blobs"))
    })
    .await;
    assert!(files(&farm, "cas").len() <= usize::try_from(MOST).unwrap() + 10, "deleted, not only lost");
    assert!(is_missing(&other, &SHA256.digest(&tiny(0))).await);
    assert!(!is_missing(&other, &SHA256.digest(&tiny(next - 1))).await);
    assert!(!is_missing(&web, &of_web).await);
    assert_eq!(reads(&web, &of_web).await.first(), Some(&("BatchReadBlobs", None)));
}

#[tokio::test]
async fn b1_actions_of_a_zone_at_its_limit_end_and_executors_take_those_of_others() {
    let locks = Locks::new();
    let limits = format!(r#"{{"other":{{"blobs_max":{MOST}}}}}"#);
    let builder = zoned(acting::builder().with("cas"), APART).env("FOREBAY_ZONE_LIMITS", limits);
    let farm = start(&locks, builder).await;
    let (web, other) =
        (grpc(&locks, &farm, Some(&locks.web)).await, grpc(&locks, &farm, Some(&locks.other)).await);
    let of_other = upload_action(&other, UNLIKE, &SHA256.empty()).await;
    let (mut next, begun) = (0, Instant::now());
    while flood(&other, next..next + 10).await.0 == 0 {
        next += 10;
        assert!(begun.elapsed() < SOON, "{next} blobs are stored");
    }
    let ended = execute(&other, &of_other).await.unwrap();
    let status = ended.status.unwrap_or_default();
    assert_eq!(status.code, i32::from(Code::ResourceExhausted), "{status:?}");
    assert!(status.message.contains("zone_limits"), "{status:?}");
    let of_web = upload_action(&web, UNLIKE, &SHA256.empty()).await;
    let ended = execute(&web, &of_web).await.unwrap();
    assert_eq!(ended.status.unwrap_or_default().code, 0);
    assert_eq!(ended.result.unwrap().output_files.len(), 1);
}

#[tokio::test]
async fn b4_a_blob_with_a_flipped_bit_is_not_served_and_can_be_stored_again() {
    let locks = Locks::new();
    let farm = start(&locks, zoned(Farm::builder().only(&["gateway"]), APART)).await;
    let web = grpc(&locks, &farm, Some(&locks.web)).await;
    let content = vec![b'x'; 100_000];
    let digest = upload(&web, &[&content]).await.remove(0);
    let path =
        farm.data().join(format!("cas/cas/sha256/{}/{}-{}", &digest.hex()[..2], digest.hex(), digest.size));
    let mut damaged = content.clone();
    damaged[50_000] ^= 1;
    // Another process, which has read nothing of it; files of the store cannot be written to.
    fs::remove_file(&path).unwrap();
    fs::write(&path, damaged).unwrap();
    farm.replace("gateway", &[]).await;
    let web = grpc(&locks, &farm, Some(&locks.web)).await;
    let read = async |digest: &BlobDigest| {
        let request = BatchReadBlobsRequest { digests: vec![proto(digest)], ..Default::default() };
        let answer = web.cas().batch_read_blobs(request).await.unwrap().into_inner();
        let answer = answer.responses.into_iter().next().unwrap();
        (answer.status.unwrap_or_default().code, answer.data)
    };
    assert_eq!(read(&digest).await, (i32::from(Code::NotFound), Vec::new()));
    assert!(is_missing(&web, &digest).await && !path.exists());
    upload(&web, &[&content]).await;
    assert_eq!(read(&digest).await, (0, content));
}
