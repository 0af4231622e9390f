//! All routes of the HTTP API.

use build_events::EventName;
use client::{LINES_MAX, LogWindow};
use model::{
    ActionsReply, ArchiveStatus, AuditKind, AuditReply, BuildId, BuildRequest, BuildView, CancelBody,
    CancelReply, ChangeEnvironmentRequest, CreateReply, Digest, Environment, EnvironmentsReply,
    ExecutorHeartbeat, GovernorRecord, Group, GroupsReply, HistoryReply, InvocationId, InvocationReply,
    InvocationsReply, Job, ListReply, Outcome, Priority, ProposeEnvironmentRequest, PurgeReply, PurgeRequest,
    QuotaReply, ReportReply, State, TargetsReply, TaskId, TestGridReply, TestsReply, ToolInvocation,
    ToolInvocationsReply, WhyReply, WorkerView,
};
use policy::access::Right;
use telemetry::metrics;

use super::endpoint::{Content, Endpoint, Parameter, Place, Reply, schema_of};
use crate::{
    access::RouteNeed, archived, builds, environments, events, farm, files, input::INTEGER_MAX, log, openapi,
};

const NAME_AND_VALUE: &str = "^[^=]*=";
/// Text of parameters that are compared with stored text.
const TEXT_MAX: usize = 4096;
const PAGE_MAX: u64 = 1000;

const READ: RouteNeed = RouteNeed::InGroup(Right::Read);
const OPERATE: RouteNeed = RouteNeed::Right(Right::Operate);

/// Every route, in the order of the document.
pub(crate) fn all() -> Vec<Endpoint> {
    let mut all = one_build();
    all.extend(lists_of_builds());
    all.extend(files());
    all.extend(runs());
    all.extend(tools());
    all.extend(figures());
    all.extend(farm());
    all.extend(environments_of_farm());
    all
}

fn group() -> Parameter {
    Parameter::path::<Group>("group", "Quota group")
}

fn build() -> [Parameter; 2] {
    [group(), Parameter::path::<BuildId>("id", "Id of the build")]
}

fn tool_call() -> [Parameter; 2] {
    [group(), Parameter::path::<ToolInvocation>("id", "Id that the tool gave its call")]
}

fn only_group() -> Parameter {
    Parameter::query::<Group>("group", "Only of this group")
}

fn page() -> [Parameter; 2] {
    [
        Parameter::text("cursor", "The `next` of an earlier reply; absent: the first page", 1, TEXT_MAX),
        Parameter::whole("limit", "Maximum number of entries", 1, PAGE_MAX),
    ]
}

fn time(name: &'static str, about: &'static str) -> Parameter {
    Parameter::whole(name, about, 0, INTEGER_MAX)
}

fn one_build() -> Vec<Endpoint> {
    let traceparent = Parameter::matching(
        Place::Header,
        "traceparent",
        "The caller's W3C trace context; an invalid one is ignored",
        "^[ -~]*$",
    );
    let location = &[("Location", "Path of the build")];
    let created = Content::Json(schema_of::<CreateReply>);
    vec![
        Endpoint::post(
            "/v1/builds/{group}",
            RouteNeed::InGroup(Right::Submit),
            "createBuild",
            "Queue a build",
            builds::create,
        )
        .takes([group(), traceparent])
        .yaml_body::<BuildRequest, Job>()
        .replies(Reply::new(201, "The build was queued", created).with(location))
        .replies(Reply::new(200, "A build with this id and content exists", created).with(location))
        .fails(&[409, 503]),
        Endpoint::get("/v1/builds/{group}/{id}", READ, "getBuild", "Show a build", builds::show)
            .takes(build())
            .answers::<BuildView>("The build and its state")
            .fails(&[404]),
        Endpoint::post(
            "/v1/builds/{group}/{id}/cancel",
            RouteNeed::Known,
            "cancelBuild",
            "Cancel a build",
            builds::cancel,
        )
        .takes(build())
        .body::<CancelBody>(false)
        .answers::<CancelReply>("The build in its final state")
        .fails(&[404, 409]),
        Endpoint::get(
            "/v1/builds/{group}/{id}/why",
            READ,
            "explainBuild",
            "Explain why a build waits",
            builds::why,
        )
        .takes(build())
        .answers::<WhyReply>("What the build waits for")
        .fails(&[404]),
        watch(),
    ]
}

fn watch() -> Endpoint {
    let resume = Parameter::matching(
        Place::Header,
        "Last-Event-ID",
        "Position after which to start; takes precedence over `from`",
        "^([0-9]{1,18})?$",
    );
    let events = "Server-sent events: `id` is the position, `event` the kind, and `data` a WatchLine. The stream \
                  ends after INVOCATION_FINISHED";
    let kinds = client::WatchKind::ALL.map(client::WatchKind::as_str);
    let names = EventName::ALL.iter().map(|name| name.as_str());
    let parameters = [
        time("from", "Position after which to start; absent: the first event"),
        Parameter::one_of("kind", "Only events of these kinds; absent: all", kinds).repeated(),
        Parameter::one_of("stream", "Of console output, only this stream", ["stdout", "stderr"]),
        Parameter::query::<TaskId>("task", "Of the worker's events, only reports of these tasks").repeated(),
        Parameter::one_of("event", "Of Bazel's build events, only these", names).repeated(),
        resume,
    ];
    Endpoint::get(
        "/v1/builds/{group}/{id}/events",
        READ,
        "watchBuild",
        "Stream a build's events",
        events::stream,
    )
    .takes(build())
    .takes(parameters)
    .replies(Reply::new(200, events, Content::Events))
    .replies(Reply::new(204, "The build has ended, and no event follows the position", Content::Nothing))
    .fails(&[404, 503])
}

/// What a list of builds can be filtered by.
fn filters() -> Vec<Parameter> {
    let states = [State::Enqueued, State::InProgress, State::Finished].map(State::as_str);
    let mut filters = vec![
        Parameter::one_of("state", "Only builds in this state", states),
        Parameter::one_of("outcome", "Only builds with this outcome", Outcome::ALL.map(Outcome::as_str)),
        Parameter::matching(
            Place::Query,
            "label",
            "Only builds with all of these labels: NAME=VALUE",
            NAME_AND_VALUE,
        )
        .repeated(),
        Parameter::text("id_prefix", "Only builds whose ids start with this", 0, TEXT_MAX),
        Parameter::query::<Priority>("priority", "Only builds of this priority"),
        Parameter::text("submitter", "Only builds of this submitter", 0, TEXT_MAX),
        time("since_ms", "Only builds submitted at this time or later, in milliseconds since 1970"),
        time("until_ms", "Only builds submitted before this time, in milliseconds since 1970"),
        Parameter::matching(
            Place::Query,
            "requirement",
            "Only builds that require these properties of their worker: NAME=VALUE",
            NAME_AND_VALUE,
        )
        .repeated(),
        Parameter::text(
            "text",
            "Only builds whose id, group, submitter, command or labels contain it",
            3,
            200,
        ),
    ];
    filters.extend(page());
    filters
}

fn lists_of_builds() -> Vec<Endpoint> {
    let newest = "Builds, newest first";
    vec![
        Endpoint::get("/v1/builds", READ, "listAllBuilds", "List the builds of all groups", builds::list_all)
            .takes(filters())
            .answers::<ListReply>(newest),
        Endpoint::get("/v1/builds/{group}", READ, "listBuilds", "List the builds of a group", builds::list)
            .takes([group()])
            .takes(filters())
            .answers::<ListReply>(newest),
    ]
}

fn files() -> Vec<Endpoint> {
    let seen =
        |name| Parameter::matching(Place::Header, name, "`ETag` of a copy that the client has", "^[ -~]*$");
    let tag = &[("ETag", "Digest of the file")];
    let unchanged = || Reply::new(304, "The client's copy is current", Content::Nothing).with(tag);
    let bytes = |about| Reply::new(200, about, Content::Bytes).with(tag);
    vec![
        log_of_build(),
        Endpoint::get(
            "/v1/builds/{group}/{id}/outputs/{*path}",
            READ,
            "getOutput",
            "Read an output file",
            files::output,
        )
        .takes(build())
        .takes([Parameter::matching(Place::Path, "path", "Path of the file; may contain `/`", "^.+$")])
        .takes([seen("If-None-Match")])
        .replies(bytes("The file"))
        .replies(unchanged())
        .fails(&[404, 503]),
        Endpoint::get(
            "/v1/blobs/{digest}",
            RouteNeed::Right(Right::CacheRead),
            "getBlob",
            "Read a blob",
            files::blob,
        )
        .takes([Parameter::path::<Digest>("digest", "SHA-256 of the blob")])
        .takes([time("size_bytes", "Size of the blob, by which the store of another farm finds it")])
        .takes([seen("If-None-Match")])
        .replies(bytes("The blob"))
        .replies(unchanged())
        .fails(&[404, 503]),
    ]
}

fn log_of_build() -> Endpoint {
    let parameters = [
        Parameter::whole(
            "line",
            "Only lines from this one on; the first has number 1, which is the default",
            1,
            INTEGER_MAX,
        ),
        Parameter::whole("lines", "Maximum number of lines; absent: 1000", 1, LINES_MAX),
        Parameter::whole("tail", "Only this many last lines; excludes `line` and `lines`", 1, LINES_MAX),
        Parameter::whole(
            "attempt",
            "Output of this attempt; absent: of the last one",
            1,
            u64::from(u32::MAX),
        ),
        Parameter::query::<InvocationId>("invocation", "Output of this run; excludes `attempt`"),
    ];
    Endpoint::get("/v1/builds/{group}/{id}/log", READ, "getLog", "Read a build's console output", log::show)
        .takes(build())
        .takes(parameters)
        .replies(Reply::new(
            200,
            "The output of a run so far, stdout and stderr in order of arrival. With `line`, `lines` or `tail`: those \
             lines as JSON",
            Content::TextOrJson("text/plain", schema_of::<LogWindow>),
        ))
        .fails(&[404, 503])
}

fn runs() -> Vec<Endpoint> {
    let attempt = Parameter::whole("attempt", "Only actions of this attempt", 0, u64::from(u32::MAX));
    vec![
        Endpoint::get(
            "/v1/builds/{group}/{id}/invocations",
            READ,
            "listInvocations",
            "List the runs of a build",
            archived::invocations,
        )
        .takes(build())
        .answers::<InvocationsReply>("The runs by attempt")
        .fails(&[404]),
        Endpoint::get(
            "/v1/builds/{group}/{id}/actions",
            READ,
            "listActions",
            "List the actions that a build sent",
            archived::actions,
        )
        .takes(build())
        .takes([attempt])
        .takes(page())
        .answers::<ActionsReply>("The executions, newest first"),
        Endpoint::get(
            "/v1/invocations/{id}",
            RouteNeed::InAll(Right::Read),
            "getInvocation",
            "Show one run and its build",
            archived::invocation,
        )
        .takes([Parameter::path::<InvocationId>("id", "Id of the run")])
        .answers::<InvocationReply>("The run and its build")
        .fails(&[404]),
    ]
}

fn tools() -> Vec<Endpoint> {
    let calls = [
        only_group(),
        Parameter::query::<BuildId>("build", "Only calls in this build"),
        Parameter::query::<ToolInvocation>("id", "Only the call with this id"),
    ];
    let status = |about| Parameter::text("status", about, 1, TEXT_MAX);
    vec![
        Endpoint::get(
            "/v1/tool_invocations",
            READ,
            "listToolInvocations",
            "List calls of build tools that published their events",
            archived::tool_invocations,
        )
        .takes(calls)
        .takes(page())
        .answers::<ToolInvocationsReply>("The calls, newest first"),
        Endpoint::get(
            "/v1/tool_invocations/{group}/{id}/targets",
            READ,
            "listTargets",
            "List the targets of a call",
            archived::targets,
        )
        .takes(tool_call())
        .takes([status("Only targets with this status, for example `failed`")])
        .takes(page())
        .answers::<TargetsReply>("The targets by label"),
        Endpoint::get(
            "/v1/tool_invocations/{group}/{id}/tests",
            READ,
            "listTests",
            "List the attempts of the tests of a call",
            archived::tests,
        )
        .takes(tool_call())
        .takes([status("Only attempts with this status, for example `failed`")])
        .takes(page())
        .answers::<TestsReply>("The attempts by label"),
        Endpoint::get(
            "/v1/test_grid",
            READ,
            "getTestGrid",
            "Compare the results of tests in the last calls of build tools",
            archived::test_grid,
        )
        .takes([
            only_group(),
            Parameter::text("text", "Only tests whose label contains this text", 0, TEXT_MAX),
            Parameter::whole("calls", "Maximum number of calls", 1, 100),
        ])
        .answers::<TestGridReply>("The tests by label"),
    ]
}

fn figures() -> Vec<Endpoint> {
    let label = Parameter::matching(
        Place::Query,
        "label",
        "Builds with this label: NAME=VALUE. One of label, command, task and test is required",
        NAME_AND_VALUE,
    );
    vec![
        Endpoint::get(
            "/v1/history",
            READ,
            "getHistory",
            "Show figures of past runs by day",
            archived::history,
        )
        .takes([
            label,
            Parameter::text("command", "Builds with this command line", 0, TEXT_MAX),
            Parameter::text("task", "Tasks with this name", 0, TEXT_MAX),
            Parameter::text("test", "Tests with this label", 0, TEXT_MAX),
            only_group(),
            Parameter::whole("days", "Number of days", 1, 365),
        ])
        .answers::<HistoryReply>("The figures"),
        Endpoint::get(
            "/v1/report",
            READ,
            "getReport",
            "Show what builds of each priority cost",
            archived::report,
        )
        .takes([time("since_ms", "Only builds that ended since, in ms since 1970"), only_group()])
        .answers::<ReportReply>("The costs"),
        Endpoint::get(
            "/v1/archive",
            RouteNeed::Farm,
            "getArchiveStatus",
            "Show how far the archive has read",
            archived::status,
        )
        .answers::<ArchiveStatus>("The positions"),
        Endpoint::get(
            "/v1/audit",
            RouteNeed::InAll(Right::Operate),
            "listAuditEvents",
            "List what callers did to the farm, and what they were refused",
            archived::audit,
        )
        .takes([
            Parameter::text(
                "who",
                "Only of this caller; with `*` at its end, of names that begin so",
                0,
                300,
            ),
            Parameter::one_of("kind", "Only of this kind", AuditKind::ALL.map(AuditKind::as_str)),
            Parameter::text("target", "Only about this; with `*` at its end, about what begins so", 0, 300),
            time("since_ms", "Only events since, in ms since 1970"),
        ])
        .takes(page())
        .answers::<AuditReply>("The events, newest first"),
    ]
}

fn environments_of_farm() -> Vec<Endpoint> {
    vec![
        Endpoint::get(
            "/v1/environments",
            RouteNeed::Right(Right::Read),
            "listEnvironments",
            "List the environments that the farm has stored",
            environments::list,
        )
        .answers::<EnvironmentsReply>("The environments, without those of the settings"),
        Endpoint::post(
            "/v1/environments",
            RouteNeed::Right(Right::Submit),
            "proposeEnvironment",
            "Add a version to an environment, which waits for approval",
            environments::propose,
        )
        .body::<ProposeEnvironmentRequest>(true)
        .answers::<Environment>("The environment with the version"),
        Endpoint::post(
            "/v1/environments/approve",
            OPERATE,
            "approveEnvironment",
            "Let the farm make a version of an environment",
            environments::approve_asked,
        )
        .body::<ChangeEnvironmentRequest>(true)
        .answers::<Environment>("The environment with the approved version")
        .fails(&[404, 409]),
        Endpoint::post(
            "/v1/environments/remove",
            OPERATE,
            "removeEnvironment",
            "Remove a version of an environment, or all",
            environments::remove,
        )
        .body::<ChangeEnvironmentRequest>(true)
        .answers::<Environment>("The environment without the version")
        .fails(&[404]),
    ]
}

fn farm() -> Vec<Endpoint> {
    let ready = |status, about| Reply::new(status, about, Content::Text("text/plain"));
    vec![
        Endpoint::get("/v1/groups", RouteNeed::Farm, "listGroups", "List the quota groups", farm::groups)
            .answers::<GroupsReply>("The groups"),
        Endpoint::get("/v1/workers", RouteNeed::Farm, "listWorkers", "List the live workers", farm::workers)
            .answers::<Vec<WorkerView>>("The workers"),
        Endpoint::get("/v1/quota", RouteNeed::Farm, "getQuota", "Show the quotas and their use", farm::quota)
            .answers::<QuotaReply>("The quotas"),
        Endpoint::get(
            "/v1/quota/decisions",
            RouteNeed::Farm,
            "listDecisions",
            "List the governor's decisions of the last 7 days, at equal distances",
            farm::decisions,
        )
        .takes([
            time("since_ms", "Only decisions since, in ms since 1970"),
            Parameter::whole("points", "Maximum number of decisions", 1, PAGE_MAX),
        ])
        .answers::<Vec<GovernorRecord>>("The decisions, oldest first"),
        Endpoint::get(
            "/v1/executors",
            RouteNeed::Farm,
            "listExecutors",
            "List the live executors",
            farm::executors,
        )
        .answers::<Vec<ExecutorHeartbeat>>("The executors"),
        Endpoint::post(
            "/v1/action-cache/purge",
            RouteNeed::InAll(Right::Operate),
            "purgeActionCache",
            "Delete results of actions by where they come from; their blobs stay",
            farm::purge,
        )
        .body::<PurgeRequest>(true)
        .answers::<PurgeReply>("What was deleted")
        .fails(&[503]),
        Endpoint::get(
            "/v1/openapi.json",
            RouteNeed::Nothing,
            "getOpenApi",
            "Read this document",
            openapi::show,
        )
        .replies(Reply::new(200, "The OpenAPI document", Content::Object)),
        Endpoint::get(
            "/metrics",
            RouteNeed::Farm,
            "getMetrics",
            "Read the metrics of this process",
            farm::metrics,
        )
        .replies(Reply::new(
            200,
            "Metrics in OpenMetrics text",
            Content::Text(metrics::CONTENT_TYPE),
        )),
        Endpoint::get(
            "/healthz",
            RouteNeed::Nothing,
            "getHealth",
            "Check whether the process can serve",
            farm::health,
        )
        .replies(ready(200, "It can"))
        .replies(ready(503, "It is stopping, or has no connection to nats-server")),
    ]
}
