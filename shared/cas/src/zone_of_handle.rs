//! The zones of a handle of the store.

use model::Zone;

use crate::{Cas, zone::View};

impl Cas {
    /// The zone of this handle; none in a farm without zones.
    pub fn zone(&self) -> Option<&Zone> {
        self.view().map(View::zone)
    }

    /// The zone whose blobs this handle is bounded to; none if it sees all blobs.
    pub fn bounds(&self) -> Option<&Zone> {
        self.view().filter(|view| view.is_bounded()).map(View::zone)
    }

    /// The zone whose results this handle reads too.
    pub(crate) fn parent(&self) -> Option<&Zone> {
        self.view()?.parent()
    }
}
