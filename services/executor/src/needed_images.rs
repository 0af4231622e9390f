//! The images that an action needs before it can start.

use std::{collections::HashMap, sync::Arc};

use ::images::Image;
use model::{ImageDemand, ImageReference};

use crate::outcome::Fault;

/// The images of an action, of which no file is removed while this exists.
#[derive(Debug, Default)]
pub(crate) struct ActionImages {
    /// That of its command.
    pub(crate) own: Option<Arc<Image>>,
    /// Those of its services.
    pub(crate) services: HashMap<ImageReference, Arc<Image>>,
}

impl ActionImages {
    /// The image of a service.
    pub(crate) fn of_service(&self, reference: &ImageReference) -> Result<Arc<Image>, Fault> {
        let found = self.services.get(reference).cloned();
        found.ok_or_else(|| Fault::Machine { reason: format!("the image {reference} was not fetched") })
    }
}

/// Whether the images of an action are here.
#[derive(Debug)]
pub(crate) enum NeededImages {
    /// All are, or it needs none.
    Here(ActionImages),
    /// They are opened first, and perhaps fetched.
    Missing {
        demand: ImageDemand,
        /// Whether they were unpacked here, so that nothing has to be fetched.
        unpacked: bool,
    },
}
