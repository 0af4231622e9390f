//! All kinds of plain messages, with their subjects, senders, receivers and answers.

use model::{
    ActionUsage, BuildUse, Control, ExecutorControl, ExecutorHeartbeat, ExecutorId, GrantNotices, Grants,
    HandOver, Heartbeat, KeepTrace, LiveOutputReply, LiveOutputRequest, OfferReply, Offers, RoomReport,
    StopServices, UsageReport, WaitAgain, WorkerId,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{HeartbeatMessage, Plain, Subject, fields, message};

// A record as it is stored.
fields!(Box<RawValue>);
message!(
    (),
    ActionUsage,
    Control,
    ControlReply,
    ExecutorControl,
    ExecutorHeartbeat,
    GrantNotices,
    Grants,
    HandOver,
    Heartbeat,
    KeepTrace,
    LiveOutputReply,
    LiveOutputRequest,
    OfferReply,
    Offers,
    RoomReport,
    StopServices,
    UsageReport,
    WaitAgain,
);

/// Declares the subject and the answer of a message.
macro_rules! plain {
    ($(#[$doc:meta])* $message:ty, $name:literal, $to:ty => $subject:expr, $answer:ty) => {
        $(#[$doc])*
        impl Plain for $message {
            const NAME: &'static str = $name;
            type To = $to;
            type Answer = $answer;

            fn subject(to: &$to) -> Subject {
                let subject: fn(&$to) -> Subject = $subject;
                subject(to)
            }
        }
    };
}

/// Answer to an order to a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ControlReply {
    /// What the build has used so far: the answer to [`Control::Measure`].
    Used(BuildUse),
    /// The order was received.
    Received {},
}

plain! {
    /// Dispatcher to one worker.
    Offers, "an offer", WorkerId => |worker| Subject::Offer(worker.clone()), OfferReply
}
plain! {
    /// Enqueuers, reapers, the CLI and autoscaling to one worker.
    Control, "an order to a worker", WorkerId => |worker| Subject::Control(worker.clone()), ControlReply
}
plain! {
    /// Workers to all dispatchers; one of a group of them stores it.
    Heartbeat, "a heartbeat of a worker", () => |()| Subject::Heartbeat, ()
}
impl HeartbeatMessage for Heartbeat {
    fn request() -> Subject {
        Subject::Announce
    }
}
plain! {
    /// The process that ended a build or an execution to all processes that trace.
    KeepTrace, "a trace to keep", () => |()| Subject::TraceKeep, ()
}
plain! {
    /// Workers and executors to the governors.
    UsageReport, "a report of use", () => |()| Subject::Usage, ()
}
plain! {
    /// Executors to the worker whose build sent the action.
    ActionUsage, "a report of an action's use", WorkerId => |worker| Subject::ActionUsage(worker.clone()), ()
}
plain! {
    /// A scheduler to one executor.
    Grants, "a grant", ExecutorId => |executor| Subject::ExecutorGrant(executor.clone()), ()
}
plain! {
    /// An executor to all of the schedulers, at any time.
    RoomReport, "a report of room", () => |()| Subject::ExecutorRoom, ()
}
plain! {
    /// A scheduler to all others.
    GrantNotices, "a notice of grants", () => |()| Subject::ExecutorGranted, ()
}
plain! {
    /// A scheduler to all others.
    WaitAgain, "a notice of requeued executions", () => |()| Subject::ExecutionsAgain, ()
}
plain! {
    /// An executor that shuts down to one of the schedulers.
    HandOver, "a return of executions", () => |()| Subject::ExecutorHandOver, ()
}
plain! {
    /// Gateways, schedulers and autoscaling to one executor.
    ExecutorControl, "an order to an executor", ExecutorId => |executor| Subject::ExecutorControl(executor.clone()), ()
}
plain! {
    /// Workers to one executor.
    StopServices, "an order to stop services", ExecutorId => |executor| Subject::ExecutorServices(executor.clone()), ()
}
plain! {
    /// Gateways to one executor.
    LiveOutputRequest, "a request for output", ExecutorId => |executor| Subject::ExecutorOutput(executor.clone()),
    LiveOutputReply
}
plain! {
    /// Executors to all schedulers; one of a group of them stores it.
    ExecutorHeartbeat, "a heartbeat of an executor", () => |()| Subject::ExecutorHeartbeat, ()
}
impl HeartbeatMessage for ExecutorHeartbeat {
    fn request() -> Subject {
        Subject::ExecutorAnnounce
    }
}
