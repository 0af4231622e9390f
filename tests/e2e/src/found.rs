//! Observations from outside the farm.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use sha2::{Digest as _, Sha256};

/// Returns running processes with this word on their command line.
pub fn processes_with_word(word: &str) -> Vec<u32> {
    let ids = fs::read_dir("/proc").expect("/proc").flatten();
    let ids = ids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let has = |pid: &u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|part| part == word.as_bytes()) && farm::alive(*pid)
    };
    ids.filter(has).collect()
}

/// Returns the SHA-256 of a file in hex; `None` when the file does not exist.
pub fn sha256(path: &Path) -> Option<String> {
    let content = fs::read(path).ok()?;
    Some(format!("{:x}", Sha256::digest(content)))
}

/// Returns when `condition` holds, with the time that it took.
pub async fn until(what: &str, limit: Duration, mut condition: impl FnMut() -> bool) -> Duration {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < limit, "{what}: not after {limit:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    began.elapsed()
}
