//! Masks secrets in a stream of output, wherever it is cut into chunks.

use std::{borrow::Cow, collections::VecDeque, ops::Range, sync::Arc};

use aho_corasick::automaton::StateID;

use crate::{SECRET_BYTES_MIN, masks::Masks, spellings::is_skipped};

/// What stands in place of a secret.
const MASK: &[u8] = b"***";

/// Masks the secrets in one stream. It holds output back only while its end can be the beginning of a secret.
pub struct Masker {
    masks: Arc<Masks>,
    state: StateID,
    /// Bytes that are held back.
    held: VecDeque<u8>,
    /// Position of the first of them in the stream.
    at: u64,
    /// Positions of the last bytes that were searched, as many as the state is deep.
    searched: VecDeque<u64>,
    /// Where secrets are in what is held, in order and without overlaps.
    secrets: VecDeque<Range<u64>>,
    /// Whether the last byte before what is held belongs to a secret.
    is_inside: bool,
}

impl Masker {
    /// Starts at the beginning of a stream.
    pub fn new(masks: &Arc<Masks>) -> Self {
        Self {
            masks: Arc::clone(masks),
            state: masks.start(),
            held: VecDeque::new(),
            at: 0,
            searched: VecDeque::new(),
            secrets: VecDeque::new(),
            is_inside: false,
        }
    }

    /// Takes a chunk; returns what is decided by now. How the stream is cut into chunks does not change the whole.
    pub fn push(&mut self, mut chunk: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(chunk.len() + self.held.len());
        while let Some((&byte, rest)) = chunk.split_first() {
            if self.held.is_empty() && self.state == self.masks.start() {
                let (harmless, other) = chunk.split_at(self.masks.harmless(chunk));
                if !harmless.is_empty() {
                    out.extend_from_slice(harmless);
                    self.at += harmless.len() as u64;
                    self.is_inside = false;
                    chunk = other;
                    continue;
                }
            }
            self.search(byte);
            // What may still become a part of a secret stays.
            let end = self.searched.front().copied().unwrap_or_else(|| self.end());
            self.release(end, &mut out);
            chunk = rest;
        }
        out
    }

    /// Nothing was printed for a while: returns what is held, if that shows less of a secret than the shortest secret has. A
    /// prompt must not wait for more output.
    pub fn pause(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        if self.undecided() < SECRET_BYTES_MIN {
            self.release(self.end(), &mut out);
        }
        out
    }

    /// The stream has ended, perhaps because its program was killed: what looks like the beginning of a secret is masked, too.
    pub fn finish(&mut self) -> Vec<u8> {
        if self.undecided() >= SECRET_BYTES_MIN
            && let (Some(first), Some(last)) = (self.searched.front(), self.searched.back())
        {
            let secret = *first..*last + 1;
            self.cover(secret);
        }
        let mut out = Vec::new();
        self.release(self.end(), &mut out);
        self.searched.clear();
        self.state = self.masks.start();
        self.is_inside = false;
        out
    }

    /// Whether output is held back.
    pub fn holds(&self) -> bool {
        !self.held.is_empty()
    }

    fn search(&mut self, byte: u8) {
        self.held.push_back(byte);
        if is_skipped(byte) {
            return;
        }
        self.state = self.masks.next(self.state, byte);
        let end = self.end();
        self.searched.push_back(end - 1);
        if let Some(length) = self.masks.found(self.state) {
            let first = self.searched.len().checked_sub(length).and_then(|index| self.searched.get(index));
            let first = first.copied().unwrap_or(self.at);
            self.cover(first..end);
        }
        let surplus = self.searched.len().saturating_sub(self.masks.depth(self.state));
        self.searched.drain(..surplus);
    }

    /// Notes a secret that ends where the search is.
    fn cover(&mut self, mut secret: Range<u64>) {
        // Its beginning may have been shown in a pause.
        secret.start = secret.start.max(self.at);
        while let Some(last) = self.secrets.pop_back() {
            if last.end < secret.start {
                self.secrets.push_back(last);
                break;
            }
            secret.start = secret.start.min(last.start);
        }
        self.secrets.push_back(secret);
    }

    /// Position after the last byte of the stream so far.
    fn end(&self) -> u64 {
        self.at + self.held.len() as u64
    }

    /// Number of bytes that are held and may, but need not, belong to a secret.
    fn undecided(&self) -> usize {
        let is_covered = |at: &u64| self.secrets.iter().any(|secret| secret.contains(at));
        self.searched.iter().filter(|at| **at >= self.at && !is_covered(at)).count()
    }

    /// Moves what is held before position `end` to `out`.
    fn release(&mut self, end: u64, out: &mut Vec<u8>) {
        while self.at < end {
            let Some(byte) = self.held.pop_front() else { return };
            let is_secret = self.secrets.front().is_some_and(|secret| secret.contains(&self.at));
            match (is_secret, self.is_inside) {
                (true, false) => out.extend_from_slice(MASK),
                // As many lines as the secret had.
                (true, true) if byte == b'\n' => {
                    out.push(byte);
                    out.extend_from_slice(MASK);
                }
                (true, true) => {}
                (false, _) => out.push(byte),
            }
            self.is_inside = is_secret;
            self.at += 1;
            if self.secrets.front().is_some_and(|secret| secret.end <= self.at) {
                self.secrets.pop_front();
            }
        }
    }
}

impl Masks {
    /// A whole text, such as a name or an error, with all secrets masked.
    pub fn mask<'a>(self: &Arc<Self>, text: &'a str) -> Cow<'a, str> {
        let mut masker = Masker::new(self);
        let mut shown = masker.push(text.as_bytes());
        shown.extend(masker.finish());
        if shown == text.as_bytes() {
            return Cow::Borrowed(text);
        }
        Cow::Owned(String::from_utf8_lossy(&shown).into_owned())
    }
}

#[cfg(test)]
mod tests;
