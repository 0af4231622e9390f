//! What a user of the bus may do, as the subjects that nats-server lets it publish and subscribe to.

use std::collections::BTreeSet;

use model::Priority;

use crate::{
    ActionSubject, AuditSubject, BazelSubject, DECISIONS_SUBJECT, Entry as _, EntryChange as _,
    EnvironmentChanged, EventSubject, ExecutorLeaseSubject, LeaseSubject, ListedEntry as _, LogSubject,
    QuotaChange, RequestSubject, Subject, filter::matches, resolver::RESOLVER_SUBJECTS, stream,
    subject::USER_INFO,
};

/// The subjects that a user may publish and subscribe to; all others are denied.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rights {
    publish: BTreeSet<String>,
    subscribe: BTreeSet<String>,
    answers: u32,
}

/// Plain subjects of one kind, whatever group, call, worker or executor they name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EachOf {
    /// Calls of the API, of each group and without a group.
    Api,
    /// Calls of the archive.
    Archive,
    /// Offers of builds to workers.
    Offer,
    /// Orders to all workers.
    Control,
    /// Reports to workers of what actions use.
    ActionUsage,
    /// Grants of executions to executors.
    ExecutorGrant,
    /// Orders to all executors.
    ExecutorControl,
    /// Orders to executors to stop services of jobs.
    ExecutorServices,
    /// Requests for the output of executions.
    ExecutorOutput,
}

impl EachOf {
    /// All kinds, in the order of declaration.
    pub const ALL: [Self; 9] = [
        Self::Api,
        Self::Archive,
        Self::Offer,
        Self::Control,
        Self::ActionUsage,
        Self::ExecutorGrant,
        Self::ExecutorControl,
        Self::ExecutorServices,
        Self::ExecutorOutput,
    ];

    /// What the subjects begin with; then come names.
    fn first(self) -> &'static str {
        match self {
            Self::Api => "forebay.api",
            Self::Archive => "forebay.archive",
            Self::Offer => "forebay.worker.offer",
            Self::Control => "forebay.worker.control",
            Self::ActionUsage => "forebay.worker.usage",
            Self::ExecutorGrant => "forebay.executor.grant",
            Self::ExecutorControl => "forebay.executor.control",
            Self::ExecutorServices => "forebay.executor.services",
            Self::ExecutorOutput => "forebay.executor.output",
        }
    }

    fn filter(self) -> String {
        format!("{}.>", self.first())
    }

    /// Those of the workers or executors of this name: their ids are `NAME.` and a random part.
    fn of(self, name: &str) -> String {
        format!("{}.{name}.*", self.first())
    }
}

/// Plain subjects on which the server repeats what it stores, and requests as they are published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LiveSubjects {
    /// Build requests of all groups.
    Requests,
    /// Events of all builds.
    Builds,
    /// Records of executions, and their progress.
    Executions,
    /// Pieces of log streams.
    Logs,
    /// Quotas and decisions of the governor.
    Quotas,
    /// Which occupancy model applies.
    Models,
    /// Target sizes of pools.
    Scale,
    /// Environments and their versions.
    Environments,
    /// Refused build requests, with reasons.
    Rejected,
}

impl LiveSubjects {
    fn filters(self) -> Vec<String> {
        let one = |subject: &str| vec![subject.to_owned()];
        match self {
            Self::Requests => Priority::ALL.into_iter().map(RequestSubject::filter).collect(),
            Self::Builds => one("forebay.build.live.>"),
            Self::Executions => one("forebay.action.live.*.*"),
            Self::Logs => one("forebay.log.live.*"),
            Self::Quotas => one(QuotaChange::LIVE),
            Self::Models => one(model::ModelNotice::LIVE),
            Self::Scale => one(model::ScalePlan::LIVE),
            Self::Environments => one(EnvironmentChanged::LIVE),
            Self::Rejected => one("forebay.build.rejected.*"),
        }
    }
}

/// Stored messages of one kind, which a user may write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WrittenSubjects {
    /// Build requests of all groups and priorities.
    Requests,
    /// Records of all builds.
    Lifecycles,
    /// Console output and tool events of builds.
    RunEvents,
    /// Build events of Bazel, in builds and outside of them.
    BazelEvents,
    /// Names of blobs with build events or console output.
    BazelBlobs,
    /// Refused build requests, with reasons.
    Rejected,
    /// Records of all executions.
    Executions,
    /// Pieces of log streams.
    Logs,
    /// Leases of all builds.
    Leases,
    /// Leases of all executors.
    ExecutorLeases,
    /// Leases of the executors of this name: their ids are the name, a dot and a random part.
    ExecutorLeasesOf(String),
    /// Quotas of groups and the default quota.
    Quotas,
    /// Decisions of the governor, and the copies of them over time.
    Decisions,
    /// Which occupancy model applies.
    Models,
    /// Target sizes of pools.
    Scale,
    /// Environments and their versions.
    Environments,
    /// Which farm a bus belongs to, and its store.
    FarmRecord,
    /// The store of earlier versions, once it is moved.
    EarlierStore,
    /// From where the log of executions is read.
    ActionsFloor,
    /// How long blobs of archived builds are kept.
    ArchivedBlobs,
    /// What executors of a pool offer.
    Pools,
    /// What each worker offers.
    WorkerProperties,
    /// Audit events of all kinds.
    Audit,
}

impl WrittenSubjects {
    fn filters(&self) -> Vec<String> {
        let one = |subject: &str| vec![subject.to_owned()];
        match self {
            Self::Requests => Priority::ALL.into_iter().map(RequestSubject::filter).collect(),
            Self::Lifecycles => one(EventSubject::LIFECYCLES),
            Self::RunEvents => {
                vec!["forebay.build.event.*.*.console".to_owned(), "forebay.build.event.*.*.tool".to_owned()]
            }
            Self::BazelEvents => {
                vec!["forebay.build.event.*.*.bazel.*".to_owned(), BazelSubject::EVENTS.to_owned()]
            }
            Self::BazelBlobs => one(BazelSubject::BLOBS),
            Self::Rejected => one("forebay.build.rejected.*"),
            Self::Executions => one(ActionSubject::ALL),
            Self::Logs => one(LogSubject::ALL),
            Self::Leases => one(LeaseSubject::ALL),
            Self::ExecutorLeases => one(ExecutorLeaseSubject::ALL),
            Self::ExecutorLeasesOf(name) => vec![ExecutorLeaseSubject::all_of(name)],
            Self::Quotas => {
                vec!["$KV.FOREBAY_QUOTA.group.*".to_owned(), "$KV.FOREBAY_QUOTA.default".to_owned()]
            }
            Self::Decisions => {
                vec![model::GovernorRecord::subject(&()), DECISIONS_SUBJECT.to_owned()]
            }
            Self::Models => vec![model::ModelNotice::subject(&())],
            Self::Scale => one(model::ScalePlan::ALL),
            Self::Environments => one(model::Environment::ALL),
            Self::FarmRecord => vec![model::FarmRecord::subject(&())],
            Self::EarlierStore => one("$KV.FOREBAY_SETTINGS.store"),
            Self::ActionsFloor => vec![crate::ActionsFloor::subject(&())],
            Self::ArchivedBlobs => vec![crate::ArchivedBlobs::subject(&())],
            Self::Pools => one(model::Pool::ALL),
            Self::WorkerProperties => one(model::WorkerProperties::ALL),
            Self::Audit => one(AuditSubject::ALL),
        }
    }
}

/// Events in an answer, and the message that ends it.
const ANSWER_MESSAGES_MAX: u32 = 257;

impl Rights {
    /// What every user may do: receive answers to its own requests in inboxes below `inbox`, and read the time of the server.
    pub fn with_inbox(inbox: &str) -> Self {
        let mut rights = Self::default();
        rights.subscribe.insert(format!("{inbox}.>"));
        rights.publish.insert(USER_INFO.to_owned());
        rights
    }

    /// The subjects that the user may publish to.
    pub fn publish(&self) -> &BTreeSet<String> {
        &self.publish
    }

    /// The subjects that the user may subscribe to.
    pub fn subscribe(&self) -> &BTreeSet<String> {
        &self.subscribe
    }

    /// The number of answers that the user may send to each message that it received.
    pub fn answers(&self) -> u32 {
        self.answers
    }

    /// Allows an answer to each received message.
    pub fn answer(&mut self) -> &mut Self {
        self.answers = self.answers.max(1);
        self
    }

    /// Allows answers of several messages: events of a build, and the message that ends them.
    pub fn answer_with_events(&mut self) -> &mut Self {
        self.answers = ANSWER_MESSAGES_MAX;
        self
    }

    /// Allows what every process of the farm does: compare the topology, read shared settings, find gateways and keep traces.
    pub fn take_part(&mut self) -> &mut Self {
        self.publish.extend(["$JS.API.STREAM.INFO.*".to_owned(), "$JS.API.CONSUMER.INFO.*.*".to_owned()]);
        // A single server holds no elections.
        self.subscribe.extend(["CONSUMER.LEADER_ELECTED.*.*", "STREAM.LEADER_ELECTED.*"].map(advisory));
        self.read(stream::SETTINGS).send(&[Subject::TraceKeep, Subject::GatewayWhere]);
        self.receive(&[Subject::TraceKeep])
    }

    /// Allows plain messages on these subjects.
    pub fn send(&mut self, subjects: &[Subject]) -> &mut Self {
        self.publish.extend(subjects.iter().map(Subject::to_string));
        self
    }

    /// Allows plain messages of these kinds to all receivers.
    pub fn send_to(&mut self, kinds: &[EachOf]) -> &mut Self {
        self.publish.extend(kinds.iter().map(|kind| kind.filter()));
        self
    }

    /// Allows subscriptions to these subjects.
    pub fn receive(&mut self, subjects: &[Subject]) -> &mut Self {
        self.subscribe.extend(subjects.iter().map(Subject::to_string));
        self
    }

    /// Allows a worker or executor of this name to receive what is for it.
    pub fn receive_as(&mut self, kinds: &[EachOf], name: &str) -> &mut Self {
        self.subscribe.extend(kinds.iter().map(|kind| kind.of(name)));
        self
    }

    /// Allows to serve these kinds of calls: to receive them, to answer, and to be listed as a service of NATS.
    pub fn serve(&mut self, kinds: &[EachOf]) -> &mut Self {
        self.subscribe.extend(kinds.iter().map(|kind| kind.filter()));
        self.subscribe.insert("$SRV.>".to_owned());
        self.answer()
    }

    /// Allows subscriptions to what the server repeats.
    pub fn hear(&mut self, live: &[LiveSubjects]) -> &mut Self {
        self.subscribe.extend(live.iter().flat_map(|live| live.filters()));
        self
    }

    /// Allows to write stored messages.
    pub fn write(&mut self, written: &[WrittenSubjects]) -> &mut Self {
        self.publish.extend(written.iter().flat_map(WrittenSubjects::filters));
        self
    }

    /// Allows reports of progress to those that wait for an execution.
    pub fn report_progress(&mut self) -> &mut Self {
        self.publish.extend(LiveSubjects::Executions.filters());
        self
    }

    /// Allows to read messages of a stream, from its leader and from any replica. Some of these requests name their subject
    /// in the body, so that this is the right to read all of the stream.
    pub fn read(&mut self, stream: &str) -> &mut Self {
        let calls = [
            format!("$JS.API.DIRECT.GET.{stream}"),
            format!("$JS.API.DIRECT.GET.{stream}.>"),
            format!("$JS.API.STREAM.MSG.GET.{stream}"),
        ];
        self.publish.extend(calls);
        self
    }

    /// Allows reads of the last record of a build, but of no other events.
    pub fn read_records(&mut self) -> &mut Self {
        self.publish.insert(format!("$JS.API.DIRECT.GET.{}.{}", stream::EVENTS, EventSubject::LIFECYCLES));
        self
    }

    /// Allows to read a stream and to follow it with consumers of its own.
    pub fn follow(&mut self, stream: &str) -> &mut Self {
        self.publish.insert(format!("$JS.API.CONSUMER.CREATE.{stream}.>"));
        self.publish.insert(format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.*"));
        self.read(stream)
    }

    /// Allows to receive and acknowledge the messages of one durable consumer.
    pub fn drain(&mut self, stream: &str, consumer: &str) -> &mut Self {
        self.publish.insert(format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"));
        // The second form is that of servers with the feature `js_ack_fc_v2`: a domain and an account come first.
        self.publish.insert(format!("$JS.ACK.{stream}.{consumer}.>"));
        self.publish.insert(format!("$JS.ACK.*.*.{stream}.{consumer}.>"));
        self
    }

    /// Allows to receive advisories about streams and consumers.
    pub fn hear_advisories(&mut self) -> &mut Self {
        self.subscribe.extend(["CONSUMER.>", "STREAM.>"].map(advisory));
        self
    }

    /// Allows to create and change streams and consumers, but not to delete them or their messages.
    pub fn apply_topology(&mut self) -> &mut Self {
        let calls = [
            "INFO",
            "STREAM.CREATE.*",
            "STREAM.UPDATE.*",
            "CONSUMER.CREATE.>",
            "CONSUMER.DURABLE.CREATE.*.*",
        ];
        self.publish.extend(calls.map(|call| format!("$JS.API.{call}")));
        self
    }

    /// Allows to check whether streams accept writes, which asks for a purge of nothing: the server cannot tell it from others.
    pub fn check_writes(&mut self) -> &mut Self {
        self.publish.insert("$JS.API.STREAM.PURGE.*".to_owned());
        self
    }

    /// Allows, in the system account, to ask all servers for their state.
    pub fn monitor(&mut self) -> &mut Self {
        self.publish.insert("$SYS.REQ.SERVER.PING.*".to_owned());
        self
    }

    /// What it takes to list accounts of nats-servers, and to change those that the operator has signed.
    pub fn of_resolver(inbox: &str) -> Self {
        let mut rights = Self::with_inbox(inbox);
        rights.publish.extend(RESOLVER_SUBJECTS.map(str::to_owned));
        rights
    }

    /// Allows to publish to `subject`.
    pub(crate) fn publish_to(&mut self, subject: String) {
        self.publish.insert(subject);
    }

    /// Allows to subscribe to `subject`.
    pub(crate) fn subscribe_to(&mut self, subject: String) {
        self.subscribe.insert(subject);
    }

    /// Whether these rights include publishing to `subject`.
    pub fn may_publish(&self, subject: &str) -> bool {
        self.publish.iter().any(|filter| matches(filter, subject))
    }

    /// Whether these rights include a subscription to `subject`, which may have wildcards.
    pub fn may_subscribe(&self, subject: &str) -> bool {
        self.subscribe.iter().any(|filter| matches(filter, subject))
    }
}

fn advisory(name: &str) -> String {
    format!("$JS.EVENT.ADVISORY.{name}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ApiCall, ArchiveCall};

    #[test]
    fn each_kind_matches_its_subjects() {
        let worker: model::WorkerId = "w-1".parse().unwrap();
        let executor = || "e-1".parse().unwrap();
        let group = || "web".parse().unwrap();
        for kind in EachOf::ALL {
            let subjects = match kind {
                EachOf::Api => {
                    let mut all = vec![Subject::ApiGroups, Subject::Builds, Subject::Workers, Subject::Quota];
                    all.extend(ApiCall::ALL.map(|call| Subject::Api(call, group())));
                    all
                }
                EachOf::Archive => ArchiveCall::ALL.map(Subject::Archive).into(),
                EachOf::Offer => vec![Subject::Offer(worker.clone())],
                EachOf::Control => vec![Subject::Control(worker.clone())],
                EachOf::ActionUsage => vec![Subject::ActionUsage(worker.clone())],
                EachOf::ExecutorGrant => vec![Subject::ExecutorGrant(executor())],
                EachOf::ExecutorControl => vec![Subject::ExecutorControl(executor())],
                EachOf::ExecutorServices => vec![Subject::ExecutorServices(executor())],
                EachOf::ExecutorOutput => vec![Subject::ExecutorOutput(executor())],
            };
            for subject in subjects {
                let subject = subject.to_string();
                assert!(matches(&kind.filter(), &subject), "{kind:?} {subject}");
                let others = EachOf::ALL.into_iter().filter(|other| *other != kind);
                assert_eq!(others.filter(|other| matches(&other.filter(), &subject)).count(), 0, "{subject}");
            }
        }
    }
}
