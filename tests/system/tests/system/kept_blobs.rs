//! Blobs that records name stay, those of an earlier version are moved, and the rest makes room.

use std::{
    fs,
    path::{Path, PathBuf},
};

use farm::{Farm, Output, SOON};
use model::{BuildId, BuildKey, BuildRequest, FarmRecord, KnownStore, Outcome, OutputFile, StoreId};

use crate::check::{BOUND, ended, ended_as, script, until};

/// Bytes of an output and of other blobs.
const BYTES: usize = 100_000;

/// A farm whose store has room for about 20 blobs and promises nothing for longer than a second.
async fn small_store() -> Farm {
    let farm = Farm::builder().with("cas").env("FOREBAY_CAS_BYTES_MAX", "2000000");
    farm.env("FOREBAY_CAS_KEEP_SECONDS", "1").env("FOREBAY_CAS_KEEP_MIN_SECONDS", "1").start().await
}

/// Runs a build with an output, and returns the output.
async fn build(farm: &Farm) -> (BuildKey, OutputFile) {
    let make = script(&format!("head -c {BYTES} /dev/urandom > out"));
    let key = farm.submit("g", BuildRequest { outputs: vec!["out".to_owned()], ..make }).await;
    let record = ended(farm, &key).await;
    let output = record.result().unwrap().outputs[0].clone();
    (key, output)
}

/// Downloads the output to a file.
async fn get(farm: &Farm, key: &BuildKey, to: &Path) -> Output {
    let grpc = farm.grpc_url();
    farm.cli(&["get", "--grpc", &grpc, &key.to_string(), "--output", "out", to.to_str().unwrap()]).await
}

/// Number of blobs that the store keeps for records.
fn kept(farm: &Farm) -> usize {
    files(&farm.data().join("cas/kept")).len()
}

/// The names of the files in a folder and below it.
fn files(folder: &Path) -> Vec<String> {
    let mut folders = vec![folder.to_owned()];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            if entry.path().is_dir() {
                folders.push(entry.path());
            } else {
                found.push(entry.file_name().to_string_lossy().into_owned());
            }
        }
    }
    found
}

/// Stores three times as many blobs as the store has room for, so that it evicts all that nothing needs.
async fn fill(farm: &Farm) {
    let grpc = farm.grpc_url();
    let file = farm.folder().join("other");
    let mut first = None;
    for number in 0..60_u8 {
        fs::write(&file, vec![number; BYTES]).unwrap();
        let put = async || farm.cli(&["cas", "--grpc", &grpc, "put", file.to_str().unwrap()]).await;
        let stored = tokio::time::timeout(BOUND, async {
            loop {
                let output = put().await;
                if output.code == 0 {
                    return output.stdout.split_whitespace().next().unwrap().to_owned();
                }
                assert!(output.stderr.contains("full"), "{output:?}");
            }
        });
        let stored = stored.await.expect("eviction makes room for other blobs");
        first.get_or_insert(stored);
    }
    let first = first.unwrap();
    // Each is kept for a second, in which all of them may have been stored.
    let name = first.replace('/', "-");
    until("60 blobs do not fit the store of 20", BOUND, || {
        !files(&farm.data().join("cas/cas")).contains(&name)
    })
    .await;
}

#[tokio::test]
async fn what_a_record_names_stays_when_the_store_is_full() {
    let farm = small_store().await;
    let (key, output) = build(&farm).await;
    until("the output is kept", SOON, || kept(&farm) == 1).await;
    fill(&farm).await;
    let to = farm.folder().join("copy");
    let got = get(&farm, &key, &to).await;
    assert_eq!(got.code, 0, "{got:?}");
    assert_eq!(fs::metadata(to).unwrap().len(), output.size_bytes);
    // A process that starts later reads all records again before it evicts.
    farm.replace("cas", &[]).await;
    let (later, _) = build(&farm).await;
    until("the second output is kept", SOON, || kept(&farm) == 2).await;
    for key in [key, later] {
        let got = get(&farm, &key, &farm.folder().join("again")).await;
        assert_eq!(got.code, 0, "{got:?}");
    }
}

/// A build with its output as an earlier version left it.
struct Earlier {
    key: BuildKey,
    output: OutputFile,
    /// Where the store has the output.
    now: PathBuf,
    /// Where the store of the earlier version had it.
    before: PathBuf,
}

/// Runs a build, stops the service `cas`, and moves the output to the store of an earlier version.
async fn earlier_output(farm: &Farm) -> Earlier {
    let (key, output) = build(farm).await;
    until("the output is kept", SOON, || kept(farm) == 1).await;
    let mut cas = farm.take("cas");
    cas.kill9();
    cas.wait_exit(SOON).await;
    // The folders and the farm's record as that version left them.
    let hex = output.digest.hex();
    let now = farm.data().join(format!("cas/cas/sha256/{}/{hex}-{}", &hex[..2], output.size_bytes));
    let folder = farm.data().join("objects/sha256").join(&hex[..2]);
    fs::create_dir_all(&folder).unwrap();
    let earlier = folder.join(hex);
    fs::rename(&now, &earlier).unwrap();
    fs::remove_dir_all(farm.data().join("cas/kept")).unwrap();
    fs::create_dir(farm.data().join("cas/kept")).unwrap();
    let (at, record) = farm.bus().buckets().get::<FarmRecord>(&()).await.unwrap();
    let url = format!("file://{}", farm.data().join("objects").display());
    let mut record = record.unwrap();
    record.store = Some(KnownStore { url, id: StoreId::generate() });
    assert!(farm.bus().buckets().compare_and_set(&(), &record, at, SOON).await.unwrap());
    Earlier { key, output, now, before: earlier }
}

#[tokio::test]
async fn the_outputs_of_an_earlier_version_are_moved_into_the_store() {
    let farm = small_store().await;
    let Earlier { key, output, before: earlier, .. } = earlier_output(&farm).await;
    farm.keep(farm.spawn("cas").await);
    until("the output is moved and kept", SOON, || kept(&farm) == 1).await;
    let to = farm.folder().join("copy");
    let got = get(&farm, &key, &to).await;
    assert_eq!(got.code, 0, "{got:?}");
    assert_eq!(fs::metadata(to).unwrap().len(), output.size_bytes);
    let (_, record) = farm.bus().buckets().get::<FarmRecord>(&()).await.unwrap();
    assert_eq!(record.unwrap().store, None);
    assert!(!earlier.exists());
}

#[tokio::test]
async fn a_damaged_output_of_an_earlier_version_stays() {
    let farm = small_store().await;
    let Earlier { output, now, before: earlier, .. } = earlier_output(&farm).await;
    let content = fs::read(&earlier).unwrap();
    fs::remove_file(&earlier).unwrap();
    fs::write(&earlier, &content[..BYTES / 2]).unwrap();
    // Not in the store of that version either.
    let readme = farm.data().join("objects/sha256/README");
    fs::write(&readme, "").unwrap();
    fs::create_dir(earlier.with_file_name("folder")).unwrap();
    let cas = farm.spawn("cas").await;
    let ends = "files of an earlier version that are damaged or are not blobs stay";
    until("the rest is moved", SOON, || cas.log_text().contains(ends)).await;
    assert!(cas.log_text().contains(output.digest.hex()), "the file is named: {}", cas.log_text());
    assert_eq!(fs::read(&earlier).unwrap(), content[..BYTES / 2]);
    assert!(readme.exists() && !now.exists() && kept(&farm) == 0);
    let (_, record) = farm.bus().buckets().get::<FarmRecord>(&()).await.unwrap();
    assert_eq!(record.unwrap().store, None);
    farm.keep(cas);
}

#[tokio::test]
async fn an_output_of_an_earlier_version_that_cannot_be_moved_stays() {
    let farm = small_store().await;
    let Earlier { key, output, now, before: earlier } = earlier_output(&farm).await;
    // A folder is in its place.
    fs::create_dir(&now).unwrap();
    let cas = farm.spawn("cas").await;
    until("the output cannot be moved", SOON, || cas.log_text().contains("cannot move the blobs")).await;
    assert_eq!(fs::metadata(&earlier).unwrap().len(), output.size_bytes);
    drop(cas);
    fs::remove_dir(&now).unwrap();
    farm.keep(farm.spawn("cas").await);
    until("the output is moved", SOON, || kept(&farm) == 1 && !earlier.exists()).await;
    let got = get(&farm, &key, &farm.folder().join("copy")).await;
    assert_eq!(got.code, 0, "{got:?}");
}

#[tokio::test]
async fn the_folder_of_a_build_that_waits_stays() {
    let farm = small_store().await;
    let mut worker = farm.take("worker");
    worker.kill9();
    worker.wait_exit(SOON).await;
    let project = farm.folder().join("project");
    fs::create_dir(&project).unwrap();
    for name in ["a", "b", "c"] {
        fs::write(project.join(name), name.repeat(BYTES)).unwrap();
    }
    let (grpc, id) = (farm.grpc_url(), BuildId::generate());
    let mut args = vec!["submit", "--grpc", &grpc, "--group", "g", "--dir", project.to_str().unwrap()];
    let text = id.to_string();
    args.extend(["--id", &text, "--", "sh", "-c", "test $(cat a b c | wc -c) = 300000"]);
    let submitted = farm.cli(&args).await;
    assert_eq!(submitted.code, 0, "{submitted:?}");
    until("the folder and its files are kept", SOON, || kept(&farm) == 4).await;
    fs::remove_dir_all(&project).unwrap();
    fill(&farm).await;
    farm.keep(farm.spawn("worker").await);
    let key = BuildKey { group: "g".parse().unwrap(), id };
    ended_as(&farm, &key, Outcome::Succeeded).await;
}

#[tokio::test]
async fn outputs_of_archived_builds_are_kept_as_long_as_their_rows() {
    let farm = Farm::builder().with("cas").with("archive");
    let farm = farm.env("FOREBAY_CAS_KEEP_MIN_SECONDS", "1").env("FOREBAY_ARCHIVE_DAYS", "700").start().await;
    let (_, output) = build(&farm).await;
    let hex = output.digest.to_string().replace("sha256:", "");
    let today = farm.bus().now().0 / 86_400_000;
    let kept_until = || {
        let days = fs::read_dir(farm.data().join("cas/kept")).into_iter().flatten().flatten();
        let file = format!("cas/sha256/{}/{hex}-{BYTES}", &hex[..2]);
        let days = days.filter(|day| day.path().join(&file).exists());
        days.filter_map(|day| day.file_name().to_str()?.parse::<u64>().ok()).max()
    };
    until("the output is kept for 700 days", SOON, || kept_until().is_some_and(|day| day >= today + 700))
        .await;
}
