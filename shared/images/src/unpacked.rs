//! The images that are unpacked, as far as this process knows.

use std::collections::VecDeque;

use model::{BlobDigest, PinnedImage};
use parking_lot::Mutex;
use tokio::sync::watch;

/// Maximum number of images that are known.
const MOST: usize = 100;

/// The images that were used last, the latest first.
#[derive(Debug, Default)]
pub(crate) struct Unpacked {
    all: Mutex<VecDeque<PinnedImage>>,
    changed: watch::Sender<()>,
}

impl Unpacked {
    /// Notes that an image is used.
    pub(crate) fn used(&self, image: &PinnedImage) {
        let mut all = self.all.lock();
        let at = all.iter().position(|it| it.manifest == image.manifest);
        match at {
            Some(0) => return,
            Some(at) => drop(all.remove(at)),
            None => all.truncate(MOST - 1),
        }
        all.push_front(image.clone());
        drop(all);
        if at.is_none() {
            self.changed.send_replace(());
        }
    }

    /// Forgets all but these.
    pub(crate) fn retain(&self, is_there: impl Fn(&PinnedImage) -> bool) {
        let mut all = self.all.lock();
        let before = all.len();
        all.retain(is_there);
        let is_less = all.len() < before;
        drop(all);
        if is_less {
            self.changed.send_replace(());
        }
    }

    /// Is changed when other images are known.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Whether an image is among them.
    pub(crate) fn has(&self, manifest: &BlobDigest) -> bool {
        self.all.lock().iter().any(|it| it.manifest == *manifest)
    }

    /// All of them, the last used first.
    pub(crate) fn all(&self) -> Vec<PinnedImage> {
        self.all.lock().iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use model::{Digest, ImageReference};

    use super::*;

    fn image(number: usize) -> PinnedImage {
        let manifest = Digest::of(number.to_string().as_bytes());
        let reference: ImageReference = "docker://a.b/c".parse().unwrap();
        PinnedImage { reference: reference.pinned(manifest.clone()), manifest: manifest.of_size(1) }
    }

    #[test]
    fn the_last_used_are_known_and_those_that_were_removed_are_not() {
        let known = Unpacked::default();
        let mut changes = known.changes();
        (0..MOST + 5).for_each(|number| known.used(&image(number)));
        assert!(changes.has_changed().unwrap());
        changes.mark_unchanged();
        known.used(&image(50));
        assert!(!changes.has_changed().unwrap(), "it is only used again");
        let all = known.all();
        assert_eq!((all.len(), &all[0], &all[1]), (MOST, &image(50), &image(MOST + 4)));
        assert!(!known.has(&image(4).manifest) && known.has(&image(5).manifest));
        known.retain(|it| *it != image(50));
        assert!(!known.has(&image(50).manifest) && changes.has_changed().unwrap());
    }
}
