//! Seals: what proves that an enqueuer or a gateway accepted a build or an execution. Its first record has one, and what
//! waits later must be the same work. Workers and executors write records too, but do not have the key.

use std::{path::Path, time::SystemTime};

use credentials::{KeyFile, KeyFileError};
use model::{Millis, hex};
use ring::hmac;

use crate::{
    Stored,
    headers::{EXPECTED, EXPECTED_SUBJECT, SEAL, header},
};

/// The key of the seals of a farm.
pub struct Seals {
    key: hmac::Key,
    /// Records that the server stored earlier need no seal.
    since: Millis,
}

impl std::fmt::Debug for Seals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Seals").field("since", &self.since).finish_non_exhaustive()
    }
}

impl Seals {
    /// Reads the key of a file. Records that are older than the file need no seal.
    pub fn of_file(path: &Path) -> Result<Self, KeyFileError> {
        let KeyFile { secret, changed } = KeyFile::read(path)?;
        // With a date in the future, no record would need a seal until then.
        let since = changed.min(SystemTime::now()).into();
        Ok(Self { key: hmac::Key::new(hmac::HMAC_SHA256, &secret), since })
    }

    /// The seal of a first record.
    pub(crate) fn of(&self, subject: &str, payload: &[u8]) -> String {
        let mut signing = hmac::Context::with_key(&self.key);
        signing.update(subject.as_bytes());
        signing.update(b"\n");
        signing.update(payload);
        hex(signing.sign().as_ref())
    }

    /// Whether a message has the seal of its subject and content, or is older than the key.
    pub(crate) fn is_on(&self, stored: &Stored) -> bool {
        let text = |name| header(stored.headers.as_ref(), name);
        // The server has stored it only if its subject was empty: it is no copy of an earlier first record.
        let is_first = text(EXPECTED) == Some("0") && text(EXPECTED_SUBJECT).is_none();
        let is_sealed = text(SEAL).is_some_and(|seal| {
            let wanted = self.of(&stored.subject, &stored.payload);
            // Compares codes of both texts: the time that this takes reveals nothing of the wanted one.
            let seal = hmac::sign(&self.key, seal.as_bytes());
            hmac::verify(&self.key, wanted.as_bytes(), seal.as_ref()).is_ok()
        });
        stored.at < self.since || is_first && is_sealed
    }
}
