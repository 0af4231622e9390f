//! The services of a farm, and other processes that use its bus.

use std::{fmt, str::FromStr};

/// What a process of the farm is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    Enqueuer,
    Dispatcher,
    Governor,
    Trainer,
    Autoscaler,
    Reaper,
    Archive,
    Scheduler,
    Gateway,
    Web,
    Cas,
    Worker,
    Executor,
    /// A person who operates the farm with the command line.
    Operator,
    /// Creates and changes streams and consumers, when the farm is installed or updated.
    Topology,
    /// The process `forebay up`, which starts the servers and the services of a machine.
    Supervisor,
    /// Reads the state of nats-servers, in the system account.
    Monitor,
}

impl Role {
    /// All roles, in the order of declaration.
    pub const ALL: [Self; 17] = [
        Self::Enqueuer,
        Self::Dispatcher,
        Self::Governor,
        Self::Trainer,
        Self::Autoscaler,
        Self::Reaper,
        Self::Archive,
        Self::Scheduler,
        Self::Gateway,
        Self::Web,
        Self::Cas,
        Self::Worker,
        Self::Executor,
        Self::Operator,
        Self::Topology,
        Self::Supervisor,
        Self::Monitor,
    ];

    /// The name in files and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Enqueuer => "enqueuer",
            Self::Dispatcher => "dispatcher",
            Self::Governor => "governor",
            Self::Trainer => "trainer",
            Self::Autoscaler => "autoscaler",
            Self::Reaper => "reaper",
            Self::Archive => "archive",
            Self::Scheduler => "scheduler",
            Self::Gateway => "gateway",
            Self::Web => "web",
            Self::Cas => "cas",
            Self::Worker => "worker",
            Self::Executor => "executor",
            Self::Operator => "operator",
            Self::Topology => "topology",
            Self::Supervisor => "supervisor",
            Self::Monitor => "monitor",
        }
    }

    /// Whether it is a user of the system account, and not of the farm's.
    pub(crate) fn is_of_the_system(self) -> bool {
        self == Self::Monitor
    }

    /// Whether it uses the index in Redis.
    pub fn uses_redis(self) -> bool {
        match self {
            Self::Enqueuer
            | Self::Dispatcher
            | Self::Governor
            | Self::Autoscaler
            | Self::Reaper
            | Self::Scheduler
            | Self::Gateway
            | Self::Operator
            | Self::Supervisor => true,
            Self::Trainer
            | Self::Archive
            | Self::Web
            | Self::Cas
            | Self::Worker
            | Self::Executor
            | Self::Topology
            | Self::Monitor => false,
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Role {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|role| role.as_str() == text).ok_or(())
    }
}
