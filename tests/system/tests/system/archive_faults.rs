//! The archive while its disk is full, its store is away, or its file is gone.

use std::time::Duration;

use archive_store::Store;
use farm::{Farm, SOON, ServiceProcess, SmallDisk};
use model::Priority;

use crate::archive::{caught_up, start, until_async};

/// Number of lines in the log of a service that contain `text`.
fn lines(service: &ServiceProcess, text: &str) -> usize {
    service.log_text().lines().filter(|line| line.contains(text)).count()
}

async fn logged(service: &ServiceProcess, text: &str) {
    until_async(text, Duration::from_secs(30), async || lines(service, text) > 0).await;
}

async fn build(farm: &Farm) {
    let key = farm.create("core", Priority::Batch, &["echo", "hello"]).await;
    farm.wait_finished(&key, SOON).await;
}

#[tokio::test]
async fn a_full_disk_is_logged_once_and_so_is_its_end() {
    let Some(disk) = SmallDisk::mount(12) else { return };
    let farm = Farm::all().await;
    let path = disk.path().join("archive.db");
    let archive = start(&farm, path.to_str().unwrap()).await;
    build(&farm).await;
    let store = Store::new(path.to_str().unwrap(), &farm.data()).unwrap();
    caught_up(&farm, &store).await;
    let fill = disk.fill();
    build(&farm).await;
    logged(&archive, "cannot write the archive").await;
    // Takes longer than several tries.
    for _ in 0..10 {
        build(&farm).await;
    }
    assert_eq!(lines(&archive, "written again"), 0, "{}", archive.log_text());
    std::fs::remove_file(fill).unwrap();
    logged(&archive, "written again").await;
    caught_up(&farm, &store).await;
    let counts = ["cannot write the archive", "written again", " archiving"].map(|text| lines(&archive, text));
    assert_eq!(counts, [1, 1, 3], "{}", archive.log_text());
}
