//! Domain types of Forebay: ids, requests, records, results and the messages built from them. No I/O.
//!
//! Every message type is defined here, once; `bus` adds its subject and encoding.

mod api;
mod archive;
mod archived_console;
mod audit;
mod band;
mod blob;
mod build_limits;
mod build_requirements;
mod digest;
mod endpoints;
mod environment;
mod estimator;
mod esu;
mod execution;
mod execution_record;
mod executor;
mod explain;
mod farm;
mod fetch_host;
mod glob;
mod hash_key;
mod hex;
mod ids;
mod image;
mod image_fetch;
mod interactor;
mod job;
mod loopback;
mod needs;
mod open_schema;
mod output_file;
mod output_globs;
mod provenance;
mod public_url;
mod quota;
mod record;
mod record_head;
mod report;
mod request;
mod requirements;
mod resources;
mod result;
mod scale;
mod secret_request;
mod service_request;
mod sight;
mod skew;
mod task_limits;
mod text_digest;
mod tool;
mod urgency;
mod validate;
mod worker;
mod workspace_keys;
mod zone_limits;

pub use api::{
    ApiError, BuildView, CancelBody, CancelReply, CancelRequest, CreateReply, ErrorCode, GetRequest,
    GroupsReply, ListReply, ListRequest, Rejection,
};
pub use archive::{
    ActionView, ActionsReply, ActionsRequest, ArchiveGap, ArchiveStatus, ArchivedBuildRequest,
    ArchivedBuildsRequest, ArchivedStream, ConsoleExtent, FindReply, FindRequest, HistoryFigures, HistoryOf,
    HistoryReply, HistoryRequest, InvocationEnd, InvocationReply, InvocationRequest, InvocationView,
    InvocationsReply, SetAsideMessage, TargetView, TargetsReply, TargetsRequest, TestGridCall, TestGridReply,
    TestGridRequest, TestGridResult, TestGridRow, TestView, TestsReply, TestsRequest, ToolInvocationView,
    ToolInvocationsReply, ToolInvocationsRequest,
};
pub use archived_console::{
    ConsoleContent, ConsoleOf, ConsoleOfBuild, ConsolePiece, ConsoleReply, ConsoleRequest,
};
pub use audit::{
    AuditDecision, AuditEntry, AuditEvent, AuditKind, AuditProof, AuditReply, AuditRequest, AuditText,
};
pub use band::{ActionOrder, BandOrder, ParseActionOrderError};
pub use blob::{BlobDigest, BlobHasher, DigestFunction, ParseBlobDigestError};
pub use build_limits::{BuildLimits, WrongLimit};
pub use build_requirements::{
    BuildRequirements, InvalidProperties, InvalidRequirements, WorkerProperties, WorkerPropertiesId,
};
pub use digest::{Digest, ParseDigestError};
pub use endpoints::{Endpoints, OperatorFiles};
pub use environment::{
    AskedEnvironment, ChangeEnvironmentRequest, Environment, EnvironmentBase, EnvironmentChange,
    EnvironmentDefinition, EnvironmentName, EnvironmentRecipe, EnvironmentState, EnvironmentVersion,
    EnvironmentsReply, ProposeEnvironmentRequest,
};
pub use estimator::EstimatorKind;
pub use esu::{Esu, ExecutorType, NotEsu, Occupancy, ParseAmountError, parse_amount};
pub use execution::{ClientTool, Execution, ExecutionKey, SendingBuild};
pub use execution_record::{ExecutionOutcome, ExecutionPhase, ExecutionRecord, SoFar, StoredResult};
pub use executor::{
    Claimed, ExecutionProgress, ExecutionStage, ExecutorControl, ExecutorHeartbeat, ExecutorStatus,
    GrantNotice, GrantNotices, Grants, HandOver, KeptRoom, LiveOutputReply, LiveOutputRequest, Pool, Room,
    RoomReport, StopServices, WaitAgain, WindowState,
};
pub use explain::{
    EstimateError, GroupStanding, InProgress, QuotaReply, StartBasis, ThrottledBy, Waiting, WaitingBuilds,
    WhyReply, WhyRequest, WorkerCounts,
};
pub use farm::{
    FARM_DATA_MARK, FarmId, FarmRecord, GatewayAddress, KeepTrace, KnownStore, StoreId, WhereQuestion,
};
pub use fetch_host::{FetchHost, ParseFetchHostError};
pub use glob::{BadGlob, read_glob};
pub use hex::hex;
pub use ids::{
    Attempt, BuildId, BuildKey, ExecutionId, ExecutorHome, ExecutorId, Group, InvocationId, Millis,
    ParseIdError, PoolName, Priority, Sequence, SharedServicesId, TaskId, ToolInvocation, WorkerId,
    Workspace, Zone,
};
pub use image::{ImageReference, ParseImageError, PinnedImage};
pub use image_fetch::{FetchRoom, ImageFetch};
pub use interactor::{Interactor, InteractorReport, InteractorRequest, InvalidInteractor};
pub use job::{
    BadPath, CommandLimits, CommandStep, Compare, CompareBy, CompareRequest, CompareRule, Conditions,
    DEFAULT_PRIORITY, DEFAULT_RETRIES, DEFAULT_WEIGHT, Dependency, DependencyRole, Disturbance, ExistsStep,
    FetchSource, FetchStep, Fraction, FromTo, Graph, Input, InteractorStep, Interference, InvalidJob,
    InvalidText, Job, JobFault, JobGlob, JobLimits, JobPath, JobResult, JobSource, MeasurePlan,
    MeasureRequest, MeasuredRun, Measurement, MeasurementState, PathKind, RESERVED_FOLDER, RenameStep,
    RunFigures, RunningTask, RunningTasks, Step, StoredJob, Task, TaskDefaults, TaskIndex, TaskReport,
    TaskRequest, TaskStatus, TimeSummary, TruncateStep,
};
pub use loopback::{is_loopback_host, is_loopback_listen};
pub use needs::{ActionKey, ActionKeys, Demand, ImageDemand, Measured, Needs, SharedServices, TestSize};
pub use open_schema::allow_more;
pub use output_file::{OutputFile, OutputNotKept};
pub use output_globs::output_globs;
pub use provenance::{Provenance, PurgeReply, PurgeRequest};
pub use public_url::{ParsePublicUrlError, PublicUrl};
pub use quota::{ActionUsage, Governed, GovernorRecord, ModelNotice, Quota, Quotas, UsageReport};
pub use record::{Build, BuildJob, BuildRecord, Invocation, Phase, Queued, Retry, State};
pub use record_head::{
    AcceptedHead, ExecutionEvent, ExecutionHead, InvocationHead, LifecycleEvent, QueueHead, RecordHead,
};
pub use report::{PriorityReport, ReportReply, ReportRequest};
pub use request::{BuildRequest, Context, RequestLimits, SomeTimeLimits, TimeLimits, WarmDefaults};
pub use requirements::{RequestedProperty, Requirements, RequirementsId};
pub use resources::{Amount, ResourceName, Resources};
pub use result::{
    BuildResult, LogSummary, Outcome, OutputStream, Reason, ReasonCode, UnknownOutputStream, brief,
};
pub use scale::{ParseScaledPoolError, ScaleObservation, ScalePlan, ScaledPool};
pub use secret_request::{
    InvalidSecrets, SECRETS_MAX, SECRETS_PROPERTY, SecretName, SecretRequest, SecretVariable,
    secrets_property,
};
pub use service_request::{
    HttpCheck, InvalidService, ParseServiceNameError, ReadyCheck, ServiceName, ServiceRequest,
};
pub use sight::Sight;
pub use skew::Skew;
pub use task_limits::TaskLimits;
pub use tool::{TargetFacts, ToolCall, ToolFacts, ToolHints, WorkspaceKind, WorkspaceUse};
pub use urgency::Urgency;
pub use validate::{Accepted, InvalidRequest};
pub use worker::{
    BuildUse, Control, Heartbeat, Offer, OfferReply, OfferVerdict, Offers, QueueSpan, ToolEvent,
    WorkerStatus, WorkerView, WorkspaceState,
};
pub use workspace_keys::{WarmKey, WorkspaceKeys};
pub use zone_limits::{ZoneLimit, ZoneLimits, ZoneUse};
