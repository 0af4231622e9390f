//! The model of sizes on generated workloads.

mod support;

mod model;
mod quality;
