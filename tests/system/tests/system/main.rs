//! Whole-system tests: each test has its own real servers and services.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]

mod acting;
mod action_commands;
mod action_limits;
mod action_network;
mod actions;
mod archive;
mod archive_faults;
mod autoscale;
mod bad_input;
mod bench_farm;
mod bench_guard;
mod build_sandbox;
mod capacity;
mod check;
mod clocks;
mod cluster;
mod collector;
mod command_line;
mod context_limits;
mod contexts;
mod cores;
mod devices;
mod documents;
mod emergencies;
mod environments;
mod estimates;
mod executor_faults;
mod folding;
mod following;
mod frozen_schedulers;
mod full_disk;
mod harness;
mod hedging;
mod http;
mod idle;
mod images;
mod images_of_builds;
mod interactors;
mod jobs;
mod jobs_refused;
mod kept_blobs;
mod limits;
mod live;
mod log_windows;
mod long_logs;
mod lost_logs;
mod marks;
mod merging;
mod models;
mod moving_files;
mod object_stores;
mod openapi;
mod packing;
mod pages;
mod placing;
mod pools;
mod positions;
mod python;
mod quota;
mod quota_rules;
mod real_builds;
mod repeats;
mod replay;
mod report;
mod requirements;
mod results;
mod scenario;
mod schemas;
mod servers_die;
mod services;
mod sharing;
mod stale_leases;
mod stalled_clients;
mod steps;
mod steps_actions;
mod store_watch;
mod telemetry;
mod terminal;
mod top;
mod traces;
mod traces_bazel;
mod two_farms;
mod up;
mod warm;
mod watch;
mod windows;
mod worker_death;
mod worker_faults;
mod worker_limits;
