//! Validation of an `Action` and its `Command` before they reach an executor.

use std::time::Duration;

use model::{BlobDigest, DigestFunction};
use prost::Message as _;
use reapi::{
    execution::{Action, Command, Platform},
    protobuf,
};
use tonic::Status;

/// Properties of output files that clients can request.
const NODE_PROPERTIES: [&str; 2] = ["mtime", "unix_mode"];

/// Default and maximum run time of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TimeoutLimits {
    /// Used if the client sets no timeout.
    pub(crate) default: Duration,
    /// Maximum timeout that a client may request.
    pub(crate) max: Duration,
}

/// The validated contents of an `Action`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CheckedAction {
    pub(crate) command: BlobDigest,
    pub(crate) input_root: BlobDigest,
    /// Run time limit of the command.
    pub(crate) timeout: Duration,
    /// Whether its client set that limit.
    pub(crate) has_timeout: bool,
    /// Whether its result must not be cached.
    pub(crate) do_not_cache: bool,
    /// The platform of the action, if it sets one.
    pub(crate) platform: Option<Platform>,
}

/// Decodes the `Action` with this digest.
pub(crate) fn decode_action(digest: &BlobDigest, content: &[u8]) -> Result<Action, Status> {
    Action::decode(content).map_err(|error| malformed("Action", digest, &error.to_string()))
}

/// Whether an action says by itself that it must run. Only the command may say so in earlier versions of the protocol.
pub(crate) fn refuses_cache(action: &Action) -> bool {
    let properties = action.platform.iter().flat_map(|platform| &platform.properties);
    let platform: Vec<_> = properties.map(|one| (one.name.clone(), one.value.clone())).collect();
    action.do_not_cache || policy::actions::refuses_cache(&platform)
}

/// Checks the fields of an `Action`.
pub(crate) fn check_action(
    digest: &BlobDigest,
    action: &Action,
    limits: TimeoutLimits,
) -> Result<CheckedAction, Status> {
    let function = digest.function;
    let inner = |field: &Option<reapi::execution::Digest>, name: &str| {
        let found =
            field.as_ref().ok_or_else(|| malformed("Action", digest, &format!("{name} is not set")))?;
        reapi::digest::from_proto(found, function)
            .map_err(|error| malformed("Action", digest, &format!("{name}: {error}")))
    };
    Ok(CheckedAction {
        command: inner(&action.command_digest, "command_digest")?,
        input_root: inner(&action.input_root_digest, "input_root_digest")?,
        timeout: timeout(action.timeout.as_ref(), limits)?,
        has_timeout: action.timeout.is_some(),
        do_not_cache: action.do_not_cache,
        platform: action.platform.clone(),
    })
}

/// What the gateway says of an encoded action and its command; for the tests of parsers.
#[doc(hidden)]
pub fn checked(action: &[u8], command: &[u8]) -> Result<(), Status> {
    let of = |content: &[u8]| DigestFunction::Sha256.digest(content);
    let limits = TimeoutLimits { default: Duration::from_secs(60), max: Duration::from_secs(3600) };
    check_action(&of(action), &decode_action(&of(action), action)?, limits)?;
    check_command(&of(command), command).map(drop)
}

fn timeout(asked: Option<&protobuf::Duration>, limits: TimeoutLimits) -> Result<Duration, Status> {
    let Some(asked) = asked else { return Ok(limits.default) };
    let wrong = |why: String| reapi::status::bad_request("action.timeout", why);
    let (Ok(seconds), Ok(nanos @ 0..=999_999_999)) =
        (u64::try_from(asked.seconds), u32::try_from(asked.nanos))
    else {
        let why = format!("invalid duration {} s and {} ns: expected 0 or more", asked.seconds, asked.nanos);
        return Err(wrong(why));
    };
    let asked = Duration::new(seconds, nanos);
    if asked > limits.max {
        let max = limits.max.as_secs();
        return Err(wrong(format!("{seconds} s exceeds the maximum run time of an action: at most {max} s")));
    }
    // Some clients set the field to zero without meaning a limit.
    Ok(if asked.is_zero() { limits.default } else { asked })
}

/// Decodes and checks the `Command` with this digest.
pub(crate) fn check_command(digest: &BlobDigest, content: &[u8]) -> Result<Command, Status> {
    let wrong = |why: &str| malformed("Command", digest, why);
    let command = Command::decode(content).map_err(|error| wrong(&error.to_string()))?;
    if command.arguments.first().is_none_or(String::is_empty) {
        return Err(wrong("it has no arguments; the first argument must be the program"));
    }
    if command.arguments.iter().any(|argument| argument.contains('\0')) {
        return Err(wrong("an argument contains a NUL byte"));
    }
    for variable in &command.environment_variables {
        let name = &variable.name;
        if name.is_empty() || name.contains(['=', '\0']) || variable.value.contains('\0') {
            return Err(wrong(&format!("invalid environment variable {:?}", shown(name))));
        }
    }
    let depth = inside(&command.working_directory, 0)
        .map_err(|why| wrong(&format!("working_directory {:?} {why}", shown(&command.working_directory))))?;
    check_outputs(&command, depth).map_err(|why| wrong(&why))?;
    let unknown =
        command.output_node_properties.iter().find(|name| !NODE_PROPERTIES.contains(&name.as_str()));
    if let Some(name) = unknown {
        let known = NODE_PROPERTIES.join(", ");
        return Err(wrong(&format!(
            "output_node_properties: {:?} is not supported; supported: {known}",
            shown(name)
        )));
    }
    Ok(command)
}

/// Checks that every output path is inside the input root. A path may be in both of the older lists: Buck2 does this
/// for an output that may be a file or a directory.
#[expect(deprecated, reason = "clients of 2.0 list files and directories separately")]
fn check_outputs(command: &Command, depth: usize) -> Result<(), String> {
    let lists: &[(&str, &[String])] = if command.output_paths.is_empty() {
        &[("output_files", &command.output_files), ("output_directories", &command.output_directories)]
    } else {
        &[("output_paths", &command.output_paths)]
    };
    for (field, paths) in lists {
        for path in *paths {
            // The working directory itself may be captured as a directory.
            if path.is_empty() && *field == "output_files" {
                return Err(format!("{field}: a path is empty"));
            }
            inside(path, depth).map_err(|why| format!("{field}: {:?} {why}", shown(path)))?;
        }
    }
    Ok(())
}

/// Checks a path relative to a directory `depth` levels below the input root. Returns the depth at which it ends.
fn inside(path: &str, depth: usize) -> Result<usize, &'static str> {
    if path.is_empty() {
        return Ok(depth);
    }
    if path.starts_with('/') {
        return Err("is absolute; expected a path relative to the working directory");
    }
    if path.contains('\0') {
        return Err("contains a NUL byte");
    }
    path.split('/').try_fold(depth, |depth, segment| match segment {
        "" => Err("has an empty segment"),
        "." => Ok(depth),
        ".." => depth.checked_sub(1).ok_or("leaves the input root"),
        _ => Ok(depth + 1),
    })
}

/// The requested platform properties: the action's, or the command's if the action has none.
#[expect(deprecated, reason = "clients of 2.1 set the platform of the command only")]
pub(crate) fn platform(action: Option<&Platform>, command: &Command) -> Vec<(String, String)> {
    let own = action.filter(|platform| !platform.properties.is_empty()).or(command.platform.as_ref());
    let properties = own.map(|platform| platform.properties.as_slice()).unwrap_or_default();
    properties.iter().map(|property| (property.name.clone(), property.value.clone())).collect()
}

/// The environment variables of a command.
pub(crate) fn environment(command: &Command) -> Vec<(String, String)> {
    let variables = command.environment_variables.iter();
    variables.map(|variable| (variable.name.clone(), variable.value.clone())).collect()
}

/// The outputs of a command: paths, files, directories.
#[expect(deprecated, reason = "clients of 2.0 list files and directories separately")]
pub(crate) fn outputs(command: &Command) -> [&[String]; 3] {
    [&command.output_paths, &command.output_files, &command.output_directories]
}

/// The action digest of an `Execute` request, and its digest function.
pub(crate) fn action_digest(
    digest: Option<&reapi::execution::Digest>,
    function: i32,
) -> Result<(BlobDigest, DigestFunction), Status> {
    let function = reapi::digest::function(function, digest)?;
    Ok((reapi::digest::required(digest, function, "action_digest")?, function))
}

fn malformed(what: &str, digest: &BlobDigest, why: &str) -> Status {
    Status::invalid_argument(format!("invalid {what} {digest}: {why}"))
}

fn shown(text: &str) -> String {
    text.chars().take(200).collect()
}

#[cfg(test)]
mod tests;
