//! Decisions about executions of actions: which pool admits them, which executor gets them, what follows a loss.

mod admit;
mod ending;
mod fair;
mod grant;
mod hedge;
mod history;
mod image;
mod image_fetch;
mod interaction;
mod invalid_need;
mod keys;
pub mod limits;
pub mod network;
mod offers;
mod order;
mod processing_set;
mod rank;
mod room;
mod services;
mod shared_services;
mod size;
mod turns;
mod wait;
mod warmth;

pub use admit::{AdmitError, DEFAULT_POOL, Refusal, admit, preferred_pool};
pub use ending::{
    AfterCopy, CopyEnd, LONG_AGO, PoolState, RETURNED_WAIT, after_copy, offering, overdue, waits_until,
};
pub use fair::{HALF_LIFE, Standing, accrue, occupancy};
pub use grant::{Ask, Decision, Grant, GrantRules, Member, Queue, Waiter, grant};
pub use hedge::HedgeRules;
pub use history::{History, Learned};
pub use image::{
    ENVIRONMENT_PROPERTY, IMAGE_OFFER, IMAGE_PROPERTY, WRITABLE_ROOT, asked_environments, asked_image,
    asks_writable_root, may_have_image, names_image, with_environments, with_image,
};
pub use image_fetch::{
    FETCHES_PER_SLOT, IMAGES_SAID, fetch_room, has_images_of_services, image_demand, image_key, takes_images,
};
pub use interaction::{
    INTERACTOR_OFFER, INTERACTOR_PROPERTY, asked_interactor, deadlock, interactor_time, interactor_value,
    joint_exit_code, joint_failure,
};
pub use invalid_need::InvalidNeed;
pub use keys::{KeyedAction, action_keys};
pub use offers::Offers;
pub use order::{Place, place};
pub use processing_set::{ProcessingSet, independent};
pub use rank::{band_of, rank};
pub use room::{AHEAD_PER_SLOT, claims_max, credible_room};
pub use services::{SERVICES_OFFER, SERVICES_PROPERTY, asked_services, services_value, with_services};
pub use shared_services::{
    SHARED_SERVICES_PROPERTY, asked_shared_services, has_shared_services, of_pools, offer_now,
};
pub use size::{
    AskedFor, CACHE_PROPERTY, CPU_PROPERTY, EXCLUSIVE_PROPERTY, MEASURED_PROPERTY, MEMORY_PROPERTY,
    RESOURCE_PREFIX, Shortage, UNITS_PROPERTY, asked, packing, read_needs, refuses_cache, shortage,
};
pub use turns::{WaitingGroup, turns};
pub use wait::expected_wait;
pub use warmth::Warmth;
