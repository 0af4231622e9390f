//! `forebay schema`: prints the JSON Schemas of public messages.

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;
use command_line::{
    failure::{FAILED, Failure},
    stdout,
};
use model::{
    ApiError, BuildRecord, BuildRequest, BuildView, CancelReply, CreateReply, Endpoints, GroupsReply,
    ListReply, Rejection, ToolEvent, WorkerView, allow_more,
};
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value};

/// Options of `forebay schema`.
#[derive(Debug, Args)]
pub(crate) struct SchemaArgs {
    /// Write one file NAME.schema.json per message into this folder instead of printing one object
    #[arg(long, value_name = "DIR")]
    write: Option<PathBuf>,
    /// Print the OpenAPI document of the gateway's HTTP API instead
    #[arg(long, conflicts_with = "write")]
    openapi: bool,
}

/// Prints the schemas, or writes them to files.
pub(crate) fn run(args: &SchemaArgs) -> Result<ExitCode, Failure> {
    if args.openapi {
        stdout::bytes(pretty(&http_api::openapi())?.as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    let schemas = all();
    match &args.write {
        Some(folder) => {
            for (name, schema) in &schemas {
                write(folder, name, schema)?;
            }
        }
        None => stdout::bytes(pretty(&Value::Object(schemas.into_iter().collect()))?.as_bytes())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The schemas of all public messages, by name.
fn all() -> Vec<(String, Value)> {
    vec![
        strict::<BuildRequest>(),
        open::<model::ActionsReply>(),
        strict::<model::ActionsRequest>(),
        open::<ApiError>(),
        open::<model::ArchiveStatus>(),
        open::<model::AuditEvent>(),
        open::<model::AuditReply>(),
        strict::<model::AuditRequest>(),
        strict::<model::ArchivedBuildRequest>(),
        strict::<model::ArchivedBuildsRequest>(),
        open::<BuildRecord>(),
        open::<BuildView>(),
        open::<CancelReply>(),
        open::<model::ConsoleReply>(),
        strict::<model::ConsoleRequest>(),
        strict::<bus::EventsRequest>(),
        open::<CreateReply>(),
        open::<Endpoints>(),
        open::<model::ExecutionProgress>(),
        open::<model::ExecutionRecord>(),
        open::<model::FarmRecord>(),
        open::<model::FindReply>(),
        strict::<model::FindRequest>(),
        open::<model::GatewayAddress>(),
        open::<model::GovernorRecord>(),
        open::<GroupsReply>(),
        open::<model::HistoryReply>(),
        strict::<model::HistoryRequest>(),
        open::<model::InvocationReply>(),
        strict::<model::InvocationRequest>(),
        open::<model::InvocationsReply>(),
        strict::<model::ChangeEnvironmentRequest>(),
        open::<model::Environment>(),
        open::<model::EnvironmentsReply>(),
        strict::<model::ProposeEnvironmentRequest>(),
        strict::<model::Job>(),
        open::<ListReply>(),
        open::<client::LogWindow>(),
        open::<model::ModelNotice>(),
        strict::<model::Quota>(),
        open::<model::QuotaReply>(),
        open::<model::ReportReply>(),
        strict::<model::ReportRequest>(),
        open::<Rejection>(),
        open::<model::TaskReport>(),
        open::<model::ScalePlan>(),
        open::<model::TargetsReply>(),
        strict::<model::TargetsRequest>(),
        open::<model::TestGridReply>(),
        strict::<model::TestGridRequest>(),
        open::<model::TestsReply>(),
        strict::<model::TestsRequest>(),
        open::<ToolEvent>(),
        open::<model::ToolInvocationsReply>(),
        strict::<model::ToolInvocationsRequest>(),
        open::<model::UsageReport>(),
        open::<client::WatchLine>(),
        open::<model::WhyReply>(),
        open::<WorkerView>(),
    ]
}

/// Schema of a message that Forebay reads: an unknown field is an error.
fn strict<T: JsonSchema>() -> (String, Value) {
    (T::schema_name().into_owned(), SchemaGenerator::default().into_root_schema_for::<T>().to_value())
}

/// Schema of a message that Forebay writes: later versions may add fields.
fn open<T: JsonSchema>() -> (String, Value) {
    let (name, mut schema) = strict::<T>();
    allow_more(&mut schema);
    (name, schema)
}

fn write(folder: &Path, name: &str, schema: &Value) -> Result<(), Failure> {
    let path = folder.join(format!("{name}.schema.json"));
    let text = pretty(schema)?;
    let written = fs::create_dir_all(folder).and_then(|()| fs::write(&path, text));
    written.map_err(|error| Failure::new(FAILED, format!("cannot write {}", path.display()), &error))
}

/// Formats a schema with sorted names, so that equal schemas have equal text.
fn pretty(schema: &Value) -> Result<String, Failure> {
    let text = serde_json::to_string_pretty(&sorted(schema))
        .map_err(|error| Failure::new(FAILED, "cannot print a schema", &error))?;
    Ok(text + "\n")
}

fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_by_key(|(name, _)| *name);
            Value::Object(
                entries.into_iter().map(|(name, value)| (name.clone(), sorted(value))).collect::<Map<_, _>>(),
            )
        }
        Value::Array(items) => Value::Array(items.iter().map(sorted).collect()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{all, pretty};

    #[test]
    fn only_what_we_read_refuses_more() {
        for (name, schema) in all() {
            let closed = pretty(&schema).unwrap().contains("Properties\": false");
            let is_read = name.ends_with("Request") || ["Job", "Quota"].contains(&name.as_str());
            assert_eq!(closed, is_read, "{name}");
        }
    }

    #[test]
    fn names_are_the_messages() {
        let names: Vec<String> = all().into_iter().map(|(name, _)| name).collect();
        for message in ["BuildRequest", "BuildView", "WatchLine", "ExecutionRecord"] {
            assert!(names.iter().any(|name| name == message), "{message}");
        }
        let distinct: BTreeSet<&String> = names.iter().collect();
        assert_eq!(distinct.len(), names.len(), "two messages would share one file: {names:?}");
    }
}
