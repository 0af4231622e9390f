//! Images that an executor has to fetch first: what an execution needs, and how many wait for them on one executor.
//!
//! A registry may not answer for minutes. So an execution holds nothing of its executor while its images are fetched, and those
//! that wait for one registry leave places for those that wait for others.

use std::collections::BTreeMap;

use model::{ActionKey, BlobDigest, Execution, FetchRoom, ImageDemand, Requirements};

use super::{image::IMAGE_OFFER, services::SERVICES_OFFER};
use crate::hash::Hasher;

/// Maximum number of executions, for each slot, whose images an executor fetches.
pub const FETCHES_PER_SLOT: u16 = 4;
/// The same of one registry.
const OF_REGISTRY_PER_SLOT: u16 = 1;
/// Maximum number of images that an executor says it has.
pub const IMAGES_SAID: usize = 100;

/// The key of an image.
pub fn image_key(manifest: &BlobDigest) -> ActionKey {
    ActionKey(Hasher::new("warm image").text(&manifest.to_string()).key())
}

fn registry_key(registry: &str) -> ActionKey {
    ActionKey(Hasher::new("registry").text(registry).key())
}

/// Whether the command, or one of its services, runs in an image whose name is known only from the action itself.
pub fn has_images_of_services(requirements: &Requirements) -> bool {
    let has = |(name, value): (&str, &str)| {
        requirements.properties.iter().any(|it| it.name == name && it.value == value)
    };
    has(SERVICES_OFFER) && has(IMAGE_OFFER)
}

/// The images that an execution needs; `None` if it needs none. Those of services count as of one registry.
pub fn image_demand(execution: &Execution) -> Option<ImageDemand> {
    if has_images_of_services(&execution.requirements) {
        return Some(ImageDemand { image: None, registry: registry_key("") });
    }
    execution.image.as_ref().map(|pinned| ImageDemand {
        image: Some(image_key(&pinned.manifest)),
        registry: registry_key(pinned.reference.registry()),
    })
}

/// Whether an executor takes an execution with these images. `has_image`: it has unpacked them.
pub fn takes_images(demand: &ImageDemand, has_image: bool, room: Option<&FetchRoom>) -> bool {
    has_image || room.is_none_or(|room| room.left > 0 && !room.full.contains(&demand.registry))
}

/// The room of an executor with `slots` that fetches from these registries, one for each execution. `None` if
/// it fetches nothing now.
pub fn fetch_room(slots: u16, fetching: impl IntoIterator<Item = ActionKey>) -> Option<FetchRoom> {
    let mut registries: BTreeMap<ActionKey, u16> = BTreeMap::new();
    for registry in fetching {
        let count = registries.entry(registry).or_default();
        *count = count.saturating_add(1);
    }
    let slots = slots.max(1);
    let all = registries.values().fold(0_u16, |sum, count| sum.saturating_add(*count));
    let of_one = slots.saturating_mul(OF_REGISTRY_PER_SLOT);
    let full = registries.iter().filter(|(_, count)| **count >= of_one).map(|(registry, _)| *registry);
    let room = || FetchRoom {
        left: slots.saturating_mul(FETCHES_PER_SLOT).saturating_sub(all),
        full: full.collect(),
    };
    (all > 0).then(room)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn demand(registry: u64) -> ImageDemand {
        ImageDemand { image: None, registry: ActionKey(registry) }
    }

    #[test]
    fn nothing_is_limited_before_something_is_fetched() {
        assert_eq!(fetch_room(2, []), None);
        assert!(takes_images(&demand(1), false, None));
    }

    #[test]
    fn an_image_that_is_there_needs_no_room() {
        let room = FetchRoom { left: 0, full: vec![ActionKey(1)] };
        assert!(takes_images(&demand(1), true, Some(&room)) && !takes_images(&demand(1), false, Some(&room)));
    }

    proptest! {
        #[test]
        fn one_registry_that_hangs_leaves_room_for_others(
            slots in 0_u16..9,
            wanted in prop::collection::vec(0_u64..3, 0..200),
        ) {
            let mut fetching: Vec<ActionKey> = Vec::new();
            for registry in wanted {
                if takes_images(&demand(registry), false, fetch_room(slots, fetching.clone()).as_ref()) {
                    fetching.push(ActionKey(registry));
                }
            }
            let most = usize::from(slots.max(1));
            for registry in 0..3 {
                prop_assert!(fetching.iter().filter(|it| **it == ActionKey(registry)).count() <= most);
            }
            prop_assert!(fetching.len() <= most * usize::from(FETCHES_PER_SLOT));
            // A registry from which nothing is fetched yet.
            prop_assert!(takes_images(&demand(9), false, fetch_room(slots, fetching).as_ref()));
        }
    }
}
