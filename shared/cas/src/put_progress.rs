//! Progress of files that are being stored.

use std::{
    io::{self, Read},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use remote::Meter;

/// Progress of [`Cas::put_files_with_progress`](crate::Cas::put_files_with_progress), read while it runs.
#[derive(Debug, Default)]
pub struct PutProgress {
    /// Files that are stored.
    files: AtomicU64,
    /// Bytes copied here or sent to an object store.
    bytes: AtomicU64,
    /// The uploads to a farm, each with the meters of its attempts.
    uploads: Mutex<Vec<Vec<Arc<Meter>>>>,
}

impl PutProgress {
    /// Number of files that are stored.
    pub fn files(&self) -> u64 {
        self.files.load(Ordering::Relaxed)
    }

    /// A number that increases with every part of the work that is done. What a repeated upload sends
    /// again does not count.
    pub fn work_done(&self) -> u64 {
        let most = |attempts: &Vec<Arc<Meter>>| attempts.iter().map(|meter| moved(meter)).max();
        let uploaded: u64 = self.uploads.lock().iter().filter_map(most).sum();
        self.files().saturating_add(self.bytes.load(Ordering::Relaxed)).saturating_add(uploaded)
    }

    /// A number that increases with every file that is stored and every part that is copied or sent, even if a repeated
    /// upload sends it again.
    pub fn activity(&self) -> u64 {
        let sent: u64 = self.uploads.lock().iter().flatten().map(|meter| moved(meter)).sum();
        self.files().saturating_add(self.bytes.load(Ordering::Relaxed)).saturating_add(sent)
    }

    pub(crate) fn add_files(&self, files: u64) {
        self.files.fetch_add(files, Ordering::Relaxed);
    }

    pub(crate) fn add_bytes(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Begins an upload; returns its number.
    pub(crate) fn begin_upload(&self) -> usize {
        let mut uploads = self.uploads.lock();
        uploads.push(Vec::new());
        uploads.len() - 1
    }

    /// The meter of another attempt of this upload.
    pub(crate) fn begin_attempt(&self, upload: usize) -> Arc<Meter> {
        let meter = Arc::<Meter>::default();
        if let Some(attempts) = self.uploads.lock().get_mut(upload) {
            attempts.push(Arc::clone(&meter));
        }
        meter
    }
}

fn moved(meter: &Meter) -> u64 {
    let reading = meter.read();
    reading.blobs.saturating_add(reading.bytes)
}

/// Counts the bytes that are read.
pub(crate) struct CountedReader<'a, R> {
    pub(crate) reader: R,
    pub(crate) progress: &'a PutProgress,
}

impl<R: Read> Read for CountedReader<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read(buffer)?;
        self.progress.add_bytes(count as u64);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_counts_and_what_is_sent_again_does_not() {
        let progress = PutProgress::default();
        let mut reader = CountedReader { reader: &b"four"[..], progress: &progress };
        io::copy(&mut reader, &mut io::sink()).unwrap();
        assert_eq!(progress.work_done(), 4);
        let upload = progress.begin_upload();
        let (first, second) = (progress.begin_attempt(upload), progress.begin_attempt(upload));
        first.moved(0, 10);
        assert_eq!(progress.work_done(), 14);
        second.moved(0, 10);
        assert_eq!((progress.work_done(), progress.activity()), (14, 24));
        second.moved(1, 5);
        assert_eq!((progress.work_done(), progress.activity()), (20, 30));
    }
}
