//! All checks, one module per topic.

mod a_digests;
mod a_endpoints;
mod a_instances;
mod a_limits;
mod b_read;
mod b_resume;
mod b_write;
mod c_batch;
mod c_missing;
mod c_tree;
mod d_splice;
mod d_split;
mod e_action_cache;
mod e_results;
mod f_cache;
mod f_directories;
mod f_missing;
mod f_platform;
mod f_priority;
mod g_failures;
mod g_live;
mod g_operations;
mod g_waiting;
mod h_command;
mod h_directories;
mod h_isolation;
mod h_metadata;
mod h_outputs;
mod i_assets;
mod i_build_events;
mod i_log_streams;

use crate::check::Check;

/// The checks of each module.
pub(crate) const CHECKS: &[&[Check]] = &[
    a_endpoints::CHECKS,
    a_limits::CHECKS,
    a_digests::CHECKS,
    a_instances::CHECKS,
    b_read::CHECKS,
    b_write::CHECKS,
    b_resume::CHECKS,
    c_missing::CHECKS,
    c_batch::CHECKS,
    c_tree::CHECKS,
    d_split::CHECKS,
    d_splice::CHECKS,
    e_action_cache::CHECKS,
    e_results::CHECKS,
    f_missing::CHECKS,
    f_platform::CHECKS,
    f_directories::CHECKS,
    f_cache::CHECKS,
    f_priority::CHECKS,
    g_operations::CHECKS,
    g_waiting::CHECKS,
    g_failures::CHECKS,
    g_live::CHECKS,
    h_command::CHECKS,
    h_outputs::CHECKS,
    h_directories::CHECKS,
    h_isolation::CHECKS,
    h_metadata::CHECKS,
    i_log_streams::CHECKS,
    i_assets::CHECKS,
    i_build_events::CHECKS,
];
