//! Masks the secrets of a build in its console output.

use std::{borrow::Cow, sync::Arc, time::Duration};

use bytes::Bytes;
use model::OutputStream;
use secrets::{Masker, Masks};
use tokio::time::Instant;

/// How long the end of output that could be the beginning of a secret waits for more.
const PATIENCE: Duration = Duration::from_millis(100);

/// The masks of a run, and the state of its two streams.
pub(crate) struct Masking {
    masks: Arc<Masks>,
    stdout: Masker,
    stderr: Masker,
    /// When what is held back is looked at.
    look_at: Option<Instant>,
}

impl Masking {
    pub(crate) fn new(masks: &Arc<Masks>) -> Self {
        let (stdout, stderr) = (Masker::new(masks), Masker::new(masks));
        Self { masks: Arc::clone(masks), stdout, stderr, look_at: None }
    }

    /// A whole text without secrets.
    pub(crate) fn text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        self.masks.mask(text)
    }

    /// Takes output; returns what can be shown by now.
    pub(crate) fn push(&mut self, stream: OutputStream, data: &[u8]) -> Bytes {
        let masker = match stream {
            OutputStream::Stdout => &mut self.stdout,
            OutputStream::Stderr => &mut self.stderr,
        };
        let shown = masker.push(data).into();
        let holds = self.stdout.holds() || self.stderr.holds();
        self.look_at = holds.then(|| Instant::now() + PATIENCE);
        shown
    }

    /// Returns when output is held back and none has come for a while.
    pub(crate) async fn quiet(&self) {
        match self.look_at {
            Some(at) => tokio::time::sleep_until(at).await,
            None => std::future::pending().await,
        }
    }

    /// What can be shown although more may follow.
    pub(crate) fn pause(&mut self) -> [(OutputStream, Bytes); 2] {
        // What remains waits for more output.
        self.look_at = None;
        [
            (OutputStream::Stdout, self.stdout.pause().into()),
            (OutputStream::Stderr, self.stderr.pause().into()),
        ]
    }

    /// What is shown at the end of both streams.
    pub(crate) fn finish(&mut self) -> [(OutputStream, Bytes); 2] {
        self.look_at = None;
        [
            (OutputStream::Stdout, self.stdout.finish().into()),
            (OutputStream::Stderr, self.stderr.finish().into()),
        ]
    }
}
