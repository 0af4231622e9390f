//! All decisions of the farm, as pure functions of values: no I/O, no clock, and no randomness except from arguments.

pub mod access;
pub mod actions;
mod allowance;
pub mod audit;
pub mod autoscale;
mod band;
pub mod build_events;
mod build_work;
mod capacity;
pub mod connections;
mod cores;
mod dequeue;
pub mod disk;
mod dispatch;
pub mod environments;
pub mod estimate;
mod executor_limit;
mod executor_types;
pub mod fetch;
mod governor;
pub mod graph;
mod hash;
mod instances;
mod joining;
pub mod judging;
mod learned_tools;
pub mod limits;
pub mod listing;
pub mod measurement;
mod memory_ahead;
mod occupancy_error;
pub mod purge;
pub mod queue;
mod queue_limit;
mod quota_rows;
mod random;
pub mod rate;
mod recent;
pub mod requirements;
mod retry;
mod sends_actions;
pub mod sign_in;
mod store_wait;
mod tool_facts;
mod unread;
mod why;
mod window;
mod worker_faults;
mod worker_offers;
pub mod workspace;
pub mod zones;

pub use allowance::{Admission, Allowance, Clamped, Held, Lending, QuotaTotals, Spare, set_point};
pub use band::band_rank;
pub use build_work::BuildWork;
pub use capacity::{ScaledExecutors, capacity, executor_capacity};
pub use cores::{CORES_OFFER, CoreSharing, Processor, TooFewCores, core_sets, memory_nodes};
pub use dequeue::{Dequeue, Lack, Throttled, dequeue};
pub use dispatch::{GroupHead, IdleWorkspaces, Placement, Supplied, Supply, Taken, draws, place, weight};
pub use executor_limit::{ExecutorAdmission, ExecutorLimit, why_executors};
pub use executor_types::executor_types;
pub use governor::{ControlSettings, ExecutorsState, GroupState, InvalidControlSettings, govern, next_tick};
pub use instances::{
    Admitted, InstancePattern, InstanceRefusal, InstanceRule, InstanceRules, OtherGroups, ParseRuleError,
};
pub use joining::{Claim, Joining, joining, joining_through_gateway};
pub use learned_tools::{LearnedTools, TargetKey, own_hints, states_version, target_keys};
pub use memory_ahead::{MemoryAhead, MemoryHistory, MemoryUse};
pub use occupancy_error::OccupancyError;
pub use queue_limit::{Full, LogGrowth, QueueLength};
pub use quota_rows::{OTHER_GROUPS, QuotaRow, quota_rows};
pub use random::Random;
pub use retry::{AfterLoss, after_loss, may_be_prepared_elsewhere, overrun_at, was_prepared_elsewhere};
pub use sends_actions::{ADDRESS_VARIABLE, ActionSenders};
pub use store_wait::{store_retry_delay, store_stall_limit, store_time_limit};
pub use tool_facts::{ConfiguredTarget, tool_facts};
pub use unread::{StreamPosition, Unread, unread};
pub use why::{Busy, Stand, Workspaces, basis_text, share_of, why, why_text, with_workers};
pub use window::{BUILD_POINTS, Signal, Window, WindowRules, counted_slots, points, window_share};
pub use worker_faults::{SourceFaults, avoids_worker, pause_after_faults};
pub use worker_offers::{
    NoWorker, WorkspaceCounts, can_run, check_requirements, check_writable_root, require_secrets,
    require_services, workspace_counts, writes_to_image,
};
