//! The occupancy model: predicts how many ESU (executor service units) of each executor type a build will occupy, from
//! the facts known before it runs. It follows section 4.3 of the paper "Scalable Build Service System with Smart
//! Scheduling Service" (Google, 2020): a linear regression per executor type over the command, flags, targets,
//! packages, counts, quota group and priority, and over crosses of up to six of these that a search chooses.
//!
//! Usage: push finished builds into a [`Dataset`], let [`search`] choose the crosses, [`fit`] the [`OccupancyModel`],
//! publish the bytes of [`OccupancyModel::encode`], and let each enqueuer [`judge`] it against the model that it runs.
//! The crate is pure: no I/O, no clock, and the only randomness comes from the given seeds.

mod chunks;
mod cross;
mod dataset;
mod encoding;
mod error;
mod example;
mod expand;
mod facts;
mod fit;
mod hash;
mod intern;
mod judge;
mod learner;
mod measure;
mod model;
mod number;
mod report;
mod rows;
mod search;
mod slots;
mod vocabulary;

pub use cross::{Cross, Crosses, Feature, MAX_FEATURES};
pub use dataset::{Dataset, is_test};
pub use error::DecodeError;
pub use facts::BuildFacts;
pub use fit::{FitOptions, fit};
pub use judge::{Refusal, TOLERANCE, judge};
pub use model::OccupancyModel;
pub use report::{Report, TestError, TypeReport};
pub use search::{SAMPLE, search};
