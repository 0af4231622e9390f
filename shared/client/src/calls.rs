//! Calls of the request/reply API.

use std::{collections::BTreeSet, time::Duration};

use bus::{
    ApiCall, ArchiveCall, AskError, Bus, BusError, EventKind, EventSubject, FromJson as _, LiveBuild,
    LiveConnection, Message, NoAnswer, Subject, WatchedKinds, stream,
};
use bytes::Bytes;
use model::{
    ActionsReply, ActionsRequest, ArchiveStatus, ArchivedBuildRequest, ArchivedBuildsRequest, BuildId,
    BuildKey, BuildRequest, BuildView, CancelReply, CancelRequest, Control, CreateReply, ErrorCode,
    FindReply, FindRequest, GetRequest, Group, GroupsReply, HistoryReply, HistoryRequest, InvocationId,
    InvocationReply, InvocationRequest, InvocationsReply, ListReply, ListRequest, QuotaReply, ReportReply,
    ReportRequest, Sequence, TargetsReply, TargetsRequest, TestGridReply, TestGridRequest, TestsReply,
    TestsRequest, ToolInvocationsReply, ToolInvocationsRequest, WhyReply, WhyRequest, WorkerId, WorkerView,
};
use tracing::debug;

use crate::{ClientError, Watch, WatchBody, WatchEvent};

/// Client of a farm. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Client {
    bus: Bus,
    /// Connection on which watches receive events as they are stored.
    live_connection: LiveConnection,
}

pub(crate) const ENQUEUER: &str = "enqueuer";
pub(crate) const ARCHIVE: &str = "archive";
/// The content of a request without parameters.
const NO_QUESTION: Bytes = Bytes::from_static(b"{}");
/// Maximum number of tries of a call without a reply; each try waits for the reply timeout of the bus.
pub(crate) const TRIES: u32 = 4;
const RETRY_DELAY: Duration = Duration::from_millis(100);

impl Client {
    /// Creates a client that uses `bus`.
    pub fn new(bus: Bus) -> Self {
        Self { live_connection: bus.live_connection(), bus }
    }

    /// Uses another connection for watches.
    #[must_use]
    pub fn with_live_connection(self, live_connection: LiveConnection) -> Self {
        Self { live_connection, ..self }
    }

    pub fn bus(&self) -> &Bus {
        &self.bus
    }

    /// Listens to the events of a build from now on. Some may be lost.
    pub async fn live_build(&self, key: &BuildKey) -> Result<LiveBuild, ClientError> {
        Ok(self.live_connection.live_build(key, WatchedKinds::ALL).await?)
    }

    /// Queues a build; publishes it if the user may not call `create`. The caller chooses its id, so that a repeated call
    /// creates no second build.
    pub async fn create(
        &self,
        group: &Group,
        request: &BuildRequest,
        traceparent: Option<&str>,
    ) -> Result<CreateReply, ClientError> {
        let tries = if request.id.is_some() { TRIES } else { 1 };
        let subject = Subject::Api(ApiCall::Create, group.clone());
        match self.call(&subject, ENQUEUER, request.to_json(), traceparent, tries).await {
            Err(ClientError::Bus(BusError::Denied(denied))) => {
                Box::pin(self.publish(group, request, traceparent, denied)).await
            }
            other => other,
        }
    }

    /// Reads the record of a build.
    pub async fn get(&self, key: &BuildKey) -> Result<BuildView, ClientError> {
        let subject = Subject::Api(ApiCall::Get, key.group.clone());
        self.call(&subject, ENQUEUER, GetRequest { id: key.id }.to_json(), None, TRIES).await
    }

    /// The last event of a build that only the archive has; none if the bus has events of it.
    pub async fn archived_last_event(&self, key: &BuildKey) -> Result<Option<WatchEvent>, ClientError> {
        if self.bus.records().latest(key).await?.is_some() {
            return Ok(None);
        }
        let view = self.get(key).await?;
        let (position, invocation) = (view.sequence, view.record.invocation_id());
        Ok(Some(WatchEvent { position, invocation, body: WatchBody::Lifecycle(Box::new(view.record)) }))
    }

    /// Cancels a build. Cancelling a finished build is not an error.
    pub async fn cancel(&self, key: &BuildKey, reason: Option<String>) -> Result<CancelReply, ClientError> {
        self.cancel_as(key, reason, None).await
    }

    /// The same with the name of the one who wants it, for the record of operators.
    pub async fn cancel_as(
        &self,
        key: &BuildKey,
        reason: Option<String>,
        caller: Option<&str>,
    ) -> Result<CancelReply, ClientError> {
        let subject = Subject::Api(ApiCall::Cancel, key.group.clone());
        let question = CancelRequest { id: key.id, reason }.to_json();
        let answer = self.ask(&subject, ENQUEUER, question, (None, caller), TRIES).await?;
        CancelReply::from_json(&answer).map_err(|source| ClientError::Answer { who: ENQUEUER, source })
    }

    /// Recent builds of a group, newest first.
    pub async fn list(&self, group: &Group, request: &ListRequest) -> Result<ListReply, ClientError> {
        let subject = Subject::Api(ApiCall::List, group.clone());
        self.call(&subject, ENQUEUER, request.to_json(), None, TRIES).await
    }

    /// All groups with a build in the retained event stream.
    pub async fn groups(&self) -> Result<Vec<Group>, ClientError> {
        let reply: GroupsReply = self.call(&Subject::ApiGroups, ENQUEUER, NO_QUESTION, None, TRIES).await?;
        Ok(reply.groups)
    }

    /// Finds the build with this id, or that of the invocation with this id, for callers that name no group. The archive
    /// knows the ids of invocations, and expired builds.
    pub async fn find(&self, id: BuildId) -> Result<BuildKey, ClientError> {
        if !self.bus.reads(stream::EVENTS).await {
            let message =
                format!("your user may not look for {id} in all groups: name its group as well, as GROUP/ID");
            return Err(ClientError::api(ErrorCode::InvalidRequest, message));
        }
        let subject = [EventSubject::lifecycle_in_any_group(id)];
        let mut hint = "";
        // Any replica may answer, and that one may be slightly behind.
        for pause in [0, 50, 250] {
            tokio::time::sleep(Duration::from_millis(pause)).await;
            let found = self.bus.stream(stream::EVENTS).last_of_many(&subject).await?;
            let keys: BTreeSet<BuildKey> = found
                .iter()
                .filter_map(|stored| Some(stored.subject.parse::<EventSubject>().ok()?.key))
                .collect();
            if let Some(key) = only(id, keys)? {
                return Ok(key);
            }
            match self.find_archived(id).await {
                Ok(keys) => {
                    if let Some(key) = only(id, keys)? {
                        return Ok(key);
                    }
                }
                Err(ClientError::Unreachable { .. }) => {
                    hint = "; no archive is running that knows older ones and invocations";
                }
                Err(error) => return Err(error),
            }
        }
        Err(ClientError::api(
            ErrorCode::NotFound,
            format!("no build or invocation {id} found in any group{hint}"),
        ))
    }

    async fn find_archived(&self, id: BuildId) -> Result<BTreeSet<BuildKey>, ClientError> {
        let question = FindRequest { id }.to_json();
        let reply: FindReply =
            self.call(&Subject::Archive(ArchiveCall::Find), ARCHIVE, question, None, 1).await?;
        Ok(reply.builds.into_iter().map(|build| BuildKey { group: build.group, id: build.id }).collect())
    }

    /// A run of a build by its id, from the archive.
    pub async fn invocation(&self, id: InvocationId) -> Result<InvocationReply, ClientError> {
        let question = InvocationRequest { id }.to_json();
        self.call(&Subject::Archive(ArchiveCall::Invocation), ARCHIVE, question, None, TRIES).await
    }

    /// All runs of a build, from the archive.
    pub async fn invocations(&self, key: &BuildKey) -> Result<InvocationsReply, ClientError> {
        let question = ArchivedBuildRequest { group: key.group.clone(), id: key.id }.to_json();
        self.call(&Subject::Archive(ArchiveCall::Invocations), ARCHIVE, question, None, TRIES).await
    }

    /// Builds of a group or of all, from the archive.
    pub async fn archived_builds(&self, request: &ArchivedBuildsRequest) -> Result<ListReply, ClientError> {
        self.call(&Subject::Archive(ArchiveCall::List), ARCHIVE, request.to_json(), None, TRIES).await
    }

    /// Actions that a build sent, from the archive.
    pub async fn actions(&self, request: &ActionsRequest) -> Result<ActionsReply, ClientError> {
        self.call(&Subject::Archive(ArchiveCall::Actions), ARCHIVE, request.to_json(), None, TRIES).await
    }

    /// Calls of build tools that published their events, from the archive.
    pub async fn tool_invocations(
        &self,
        request: &ToolInvocationsRequest,
    ) -> Result<ToolInvocationsReply, ClientError> {
        let subject = Subject::Archive(ArchiveCall::ToolInvocations);
        self.call(&subject, ARCHIVE, request.to_json(), None, TRIES).await
    }

    /// The targets of a call of a build tool, from the archive.
    pub async fn targets(&self, request: &TargetsRequest) -> Result<TargetsReply, ClientError> {
        self.call(&Subject::Archive(ArchiveCall::Targets), ARCHIVE, request.to_json(), None, TRIES).await
    }

    /// The attempts of the tests of a call of a build tool, from the archive.
    pub async fn tests(&self, request: &TestsRequest) -> Result<TestsReply, ClientError> {
        self.call(&Subject::Archive(ArchiveCall::Tests), ARCHIVE, request.to_json(), None, TRIES).await
    }

    /// The results of tests in the last calls of build tools that ran tests, from the archive.
    pub async fn test_grid(&self, request: &TestGridRequest) -> Result<TestGridReply, ClientError> {
        self.call(&Subject::Archive(ArchiveCall::TestGrid), ARCHIVE, request.to_json(), None, TRIES).await
    }

    /// Figures of past runs, from the archive.
    pub async fn history(&self, request: &HistoryRequest) -> Result<HistoryReply, ClientError> {
        self.call(&Subject::Archive(ArchiveCall::History), ARCHIVE, request.to_json(), None, TRIES).await
    }

    /// What builds of each priority cost, from the archive.
    pub async fn report(&self, request: &ReportRequest) -> Result<ReportReply, ClientError> {
        self.call(&Subject::Archive(ArchiveCall::Report), ARCHIVE, request.to_json(), None, TRIES).await
    }

    /// How far the archive has read, and what it lacks.
    pub async fn archive_status(&self) -> Result<ArchiveStatus, ClientError> {
        self.call(&Subject::Archive(ArchiveCall::Status), ARCHIVE, NO_QUESTION, None, TRIES).await
    }

    /// Explains why a build waits.
    pub async fn why(&self, key: &BuildKey) -> Result<WhyReply, ClientError> {
        let subject = Subject::Api(ApiCall::Why, key.group.clone());
        self.call(&subject, ENQUEUER, WhyRequest { id: key.id }.to_json(), None, TRIES).await
    }

    /// Quotas and governor decisions of all groups.
    pub async fn quota(&self) -> Result<QuotaReply, ClientError> {
        self.call(&Subject::Quota, ENQUEUER, NO_QUESTION, None, TRIES).await
    }

    pub async fn workers(&self) -> Result<Vec<WorkerView>, ClientError> {
        self.call(&Subject::Workers, ENQUEUER, NO_QUESTION, None, TRIES).await
    }

    /// Sends a control message to a worker.
    pub async fn control(&self, worker: &WorkerId, order: &Control) -> Result<(), ClientError> {
        let mut left = TRIES;
        loop {
            left = left.saturating_sub(1);
            match self.bus.answer_to(worker, order, None).await {
                // Any answer shows that the worker received the order.
                Ok(_) | Err(NoAnswer::Unreadable { .. }) => return Ok(()),
                Err(error @ NoAnswer::TooLarge { .. }) => {
                    return Err(ClientError::api(ErrorCode::InvalidRequest, error.to_string()));
                }
                Err(NoAnswer::NoListener { .. }) => {
                    let message = format!("worker {worker} not found");
                    return Err(ClientError::api(ErrorCode::NotFound, message));
                }
                Err(error @ NoAnswer::Unknown { .. }) if left > 0 => {
                    debug!(%error, "repeating the call");
                    tokio::time::sleep(RETRY_DELAY).await;
                }
                Err(NoAnswer::Unknown { subject, source }) => {
                    let source = AskError::Doubtful { subject, source: Box::new(source) };
                    return Err(ClientError::Doubtful { who: "worker", source });
                }
            }
        }
    }

    /// The events of a build after position `after`, as they come. Empty `kinds`: all kinds.
    pub fn watch(&self, key: &BuildKey, after: Sequence, kinds: &[EventKind]) -> Watch {
        Watch::new(self.bus.clone(), self.live_connection.clone(), key.clone(), after, kinds)
    }

    pub(crate) async fn ask_archive<A: Message>(
        &self,
        call: ArchiveCall,
        question: Bytes,
    ) -> Result<A, ClientError> {
        self.call(&Subject::Archive(call), ARCHIVE, question, None, TRIES).await
    }

    pub(crate) async fn call<A: Message>(
        &self,
        subject: &Subject,
        who: &'static str,
        question: Bytes,
        traceparent: Option<&str>,
        tries: u32,
    ) -> Result<A, ClientError> {
        let answer = self.ask(subject, who, question, (traceparent, None), tries).await?;
        A::from_json(&answer).map_err(|source| ClientError::Answer { who, source })
    }

    async fn ask(
        &self,
        subject: &Subject,
        who: &'static str,
        payload: Bytes,
        (traceparent, caller): (Option<&str>, Option<&str>),
        tries: u32,
    ) -> Result<Bytes, ClientError> {
        let mut left = tries;
        loop {
            left = left.saturating_sub(1);
            match self.bus.ask_as(caller, subject, traceparent, payload.clone()).await {
                Err(error @ AskError::Doubtful { .. }) if left > 0 => {
                    debug!(%subject, %error, "repeating the call");
                    tokio::time::sleep(RETRY_DELAY).await;
                }
                other => return other.map_err(|error| ClientError::from_ask(error, who)),
            }
        }
    }
}

/// The build with this id, if there is one. With several, the caller must name the group.
fn only(id: BuildId, keys: BTreeSet<BuildKey>) -> Result<Option<BuildKey>, ClientError> {
    if keys.len() > 1 {
        let groups = keys.iter().map(|key| key.group.as_str()).collect::<Vec<_>>().join(", ");
        let message = format!("build {id} exists in several groups ({groups}): select one with --group");
        return Err(ClientError::api(ErrorCode::InvalidRequest, message));
    }
    Ok(keys.into_iter().next())
}
