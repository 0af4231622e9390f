#![expect(deprecated, reason = "older clients are served too")]

use reapi::execution::{command::EnvironmentVariable, platform::Property};
use tonic::Code;

use super::*;

const LIMITS: TimeoutLimits =
    TimeoutLimits { default: Duration::from_secs(60), max: Duration::from_secs(3600) };

fn digest(content: &[u8]) -> BlobDigest {
    DigestFunction::Sha256.digest(content)
}

fn action() -> Action {
    Action {
        command_digest: Some(reapi::digest::to_proto(&digest(b"c"))),
        input_root_digest: Some(reapi::digest::to_proto(&digest(b"r"))),
        ..Action::default()
    }
}

fn with_timeout(seconds: i64, nanos: i32) -> Result<CheckedAction, Status> {
    let action = Action { timeout: Some(protobuf::Duration { seconds, nanos }), ..action() };
    check_action(&digest(b"a"), &action, LIMITS)
}

fn command() -> Command {
    Command { arguments: vec!["true".into()], ..Command::default() }
}

fn refused(command: &Command) -> String {
    let status = check_command(&digest(b"c"), &command.encode_to_vec()).unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    status.message().to_owned()
}

fn taken(command: &Command) {
    check_command(&digest(b"c"), &command.encode_to_vec()).unwrap();
}

#[test]
fn a_timeout_is_between_nothing_and_the_maximum() {
    assert_eq!(check_action(&digest(b"a"), &action(), LIMITS).unwrap().timeout, LIMITS.default);
    assert_eq!(with_timeout(0, 0).unwrap().timeout, LIMITS.default);
    assert_eq!(with_timeout(1, 500_000_000).unwrap().timeout, Duration::from_millis(1500));
    assert_eq!(with_timeout(3600, 0).unwrap().timeout, LIMITS.max);
    for (seconds, nanos) in [(-1, 0), (0, -1), (1, 1_000_000_000), (3600, 1), (i64::MAX, 0)] {
        let status = with_timeout(seconds, nanos).unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
    }
    assert!(with_timeout(3601, 0).unwrap_err().message().contains("at most 3600 s"));
}

#[test]
fn an_action_names_its_command_and_its_input_root() {
    for bad in [
        Action { command_digest: None, ..action() },
        Action { input_root_digest: None, ..action() },
        Action { command_digest: Some(reapi::execution::Digest::default()), ..action() },
    ] {
        let status = check_action(&digest(b"a"), &bad, LIMITS).unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
    }
    assert_eq!(decode_action(&digest(b"a"), b"\xff\xff").unwrap_err().code(), Code::InvalidArgument);
}

#[test]
fn a_command_has_a_program() {
    taken(&command());
    assert!(refused(&Command::default()).contains("no arguments"));
    assert!(refused(&Command { arguments: vec![String::new()], ..command() }).contains("no arguments"));
    assert_eq!(check_command(&digest(b"c"), b"\xff").unwrap_err().code(), Code::InvalidArgument);
    let variable = EnvironmentVariable { name: "A=B".into(), value: String::new() };
    assert!(refused(&Command { environment_variables: vec![variable], ..command() }).contains("A=B"));
}

#[test]
fn outputs_lie_inside_the_input_root() {
    let with = |path: &str, directory: &str| Command {
        output_paths: vec![path.to_owned()],
        working_directory: directory.to_owned(),
        ..command()
    };
    for (path, directory) in [("a/b", ""), ("../b", "a"), ("a/../b", ""), ("./a", ""), ("", ""), ("x..y", "")]
    {
        taken(&with(path, directory));
    }
    for (path, directory) in
        [("/a", ""), ("..", ""), ("../../b", "a"), ("a/../../b", ""), ("a//b", ""), ("a/", "")]
    {
        refused(&with(path, directory));
    }
    for directory in ["/", "/tmp", "..", "a/../..", "a/"] {
        assert!(refused(&with("x", directory)).contains("working_directory"), "{directory}");
    }
    assert!(refused(&Command { output_files: vec![String::new()], ..command() }).contains("empty"));
    taken(&Command { output_directories: vec![String::new()], ..command() });
    taken(&Command { output_files: vec!["a".into()], output_directories: vec!["a".into()], ..command() });
    // The older fields are ignored if the newer one is set.
    taken(&Command { output_files: vec!["/x".into()], ..with("a", "") });
}

#[test]
fn only_known_node_properties_can_be_asked_for() {
    let with = |name: &str| Command { output_node_properties: vec![name.to_owned()], ..command() };
    taken(&with("mtime"));
    assert!(refused(&with("owner")).contains("\"owner\" is not supported; supported: mtime, unix_mode"));
}

#[test]
fn the_actions_platform_is_preferred() {
    let platform = |value: &str| Platform {
        properties: vec![Property { name: "Pool".into(), value: value.to_owned() }],
    };
    let asked = |action: Option<&Platform>, command: Option<&Platform>| {
        let command = Command { platform: command.cloned(), ..super::tests::command() };
        super::platform(action, &command).pop().map(|(_, value)| value)
    };
    let (one, two) = (platform("1"), platform("2"));
    assert_eq!(asked(Some(&one), Some(&two)).as_deref(), Some("1"));
    assert_eq!(asked(None, Some(&two)).as_deref(), Some("2"));
    assert_eq!(asked(Some(&Platform::default()), Some(&two)).as_deref(), Some("2"));
    assert_eq!(asked(None, None), None);
}
