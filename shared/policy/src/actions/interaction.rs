//! The interactor of an action, as a platform property, and what the ends of both commands mean.
//!
//! `forebay-interactor` has the interactor of the action as JSON: an [`Interactor`], at most 64 KiB. It is part of the action's
//! digest like all properties: with another interactor it is another action.

use std::time::Duration;

use model::Interactor;

use super::invalid_need::InvalidNeed;

/// The property that has the interactor of an action.
pub const INTERACTOR_PROPERTY: &str = "forebay-interactor";
/// The property and value by which executors offer to run actions with an interactor.
pub const INTERACTOR_OFFER: (&str, &str) = ("interactor", "on");

/// Maximum bytes of the property's value.
const BYTES_MAX: usize = 64 << 10;
/// How much longer than the command its interactor may run, if its author sets no limit: so the command exceeds its
/// limit before the interactor.
const LONGER: Duration = Duration::from_secs(10);

/// Whether a property has an interactor.
fn has(name: &str) -> bool {
    name.eq_ignore_ascii_case(INTERACTOR_PROPERTY)
}

/// The interactor that an action with these properties asks for.
///
/// Fails if it cannot be read or cannot run, or if there are two.
pub fn asked_interactor(platform: &[(String, String)]) -> Result<Option<Interactor>, InvalidNeed> {
    let mut all = platform.iter().filter(|(name, _)| has(name));
    let Some((name, value)) = all.next() else { return Ok(None) };
    if let Some((name, value)) = all.next() {
        return Err(InvalidNeed::of(name, value, "expected one interactor, but there are two"));
    }
    parse(name, value).map(Some)
}

fn parse(name: &str, value: &str) -> Result<Interactor, InvalidNeed> {
    if value.len() > BYTES_MAX {
        let why = format!("expected at most {BYTES_MAX} bytes, but it has {}", value.len());
        return Err(InvalidNeed::of(name, value, why));
    }
    let interactor: Interactor = serde_json::from_str(value)
        .map_err(|error| InvalidNeed::of(name, value, format!("expected an interactor as JSON: {error}")))?;
    interactor.check().map_err(|fault| InvalidNeed::of(name, value, fault.to_string()))?;
    Ok(interactor)
}

/// The value of the property for this interactor.
pub fn interactor_value(interactor: &Interactor) -> String {
    // Strings, numbers and lists: there is nothing that JSON does not have.
    serde_json::to_string(interactor).unwrap_or_default()
}

/// What an executor must offer for a property of an action; `None` if it has no interactor.
pub(super) fn requirement(name: &str, value: &str) -> Option<Result<(String, String), InvalidNeed>> {
    let (offer, on) = INTERACTOR_OFFER;
    has(name).then(|| parse(name, value).map(|_| (offer.to_owned(), on.to_owned())))
}

/// What an operator can do if no pool offers this property.
pub(super) fn advice(property: &str) -> &'static str {
    if property == INTERACTOR_OFFER.0 {
        "; an executor runs actions with an interactor if it has the sandbox bubblewrap and input roots other than /"
    } else {
        ""
    }
}

/// The time limit of an interactor whose author set `asked`, beside a command with the limit `of_command`.
pub fn interactor_time(asked: Option<Duration>, of_command: Duration) -> Duration {
    asked.unwrap_or_else(|| of_command.saturating_add(LONGER))
}

/// The exit code of an action: that of its interactor, or if that is 0, that of its command.
pub fn joint_exit_code(command: i32, interactor: i32) -> i32 {
    if interactor == 0 { command } else { interactor }
}

/// Why an action failed whose commands exited with these codes; `None` if it succeeded.
pub fn joint_failure(command: i32, interactor: i32) -> Option<String> {
    match (command, interactor) {
        (0, 0) => None,
        (command, 0) => Some(format!("exit code {command}, although its interactor ended with exit code 0")),
        (0, interactor) => Some(format!("its interactor ended with exit code {interactor}")),
        (command, interactor) => Some(format!(
            "its interactor ended with exit code {interactor}, the command with exit code {command}"
        )),
    }
}

/// What is said of a command that was killed at its time limit after `wall`, while its interactor still ran: probably a
/// deadlock, if both together used less than a fifth of this time.
pub fn deadlock(wall: Duration, cpu: [Duration; 2]) -> Option<String> {
    let [command, interactor] = cpu;
    let used = command.saturating_add(interactor);
    (used < wall / 5).then(|| {
        let [command, interactor] = cpu.map(|cpu| cpu.as_secs_f64());
        format!(
            "its interactor still ran, and they used only {command:.3} s and {interactor:.3} s of processor time: probably a \
             deadlock in which each waits for input (is all output flushed?)"
        )
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn platform(value: &str) -> Vec<(String, String)> {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        vec![pair("Arch", "x"), pair("Forebay-Interactor", value)]
    }

    #[test]
    fn an_interactor_is_read_as_it_was_written_and_requires_an_executor_for_it() {
        let interactor = Interactor {
            command: vec!["python3".to_owned(), "judge.py".to_owned()],
            folder: Some("secret".to_owned()),
            env: [("A".to_owned(), "b".to_owned())].into(),
            limits: model::TaskLimits { cpu_ms: Some(7), ..model::TaskLimits::default() },
        };
        let value = interactor_value(&interactor);
        assert_eq!(asked_interactor(&platform(&value)), Ok(Some(interactor)));
        assert_eq!(asked_interactor(&platform(&value)[..1]), Ok(None));
        let required = requirement(INTERACTOR_PROPERTY, &value).unwrap().unwrap();
        assert_eq!((required.0.as_str(), required.1.as_str()), INTERACTOR_OFFER);
        assert!(requirement("interactor", &value).is_none());
    }

    #[test]
    fn what_is_no_interactor_is_refused() {
        let long = format!("{{{}}}", " ".repeat(BYTES_MAX));
        for (value, reason) in [
            ("judge", "as JSON"),
            (r#"{"command": [""]}"#, "the command of the interactor is invalid"),
            (r#"{"command": ["a"], "folder": ".."}"#, "the folder of the interactor is invalid"),
            (long.as_str(), "at most 65536 bytes"),
        ] {
            let error = asked_interactor(&platform(value)).unwrap_err().to_string();
            assert!(error.contains(reason) && error.len() < 1000, "{error}");
        }
        let good = r#"{"command": ["a"]}"#;
        let two = [platform(good), platform(good)].concat();
        assert!(asked_interactor(&two).unwrap_err().to_string().contains("two"));
    }

    #[test]
    fn a_deadlock_is_named_only_if_both_were_idle() {
        let second = Duration::from_secs(1);
        assert!(deadlock(second, [second / 20, second / 20]).unwrap().contains("deadlock"));
        assert_eq!(deadlock(second, [second / 10, second]), None);
        assert_eq!(deadlock(second, [second, second / 10]), None);
    }

    proptest! {
        #[test]
        fn an_action_succeeds_exactly_if_both_commands_do(command in 0_i32..200, interactor in 0_i32..200) {
            let is_success = command == 0 && interactor == 0;
            prop_assert_eq!(joint_exit_code(command, interactor) == 0, is_success);
            prop_assert_eq!(joint_failure(command, interactor).is_none(), is_success);
            for code in [command, interactor].into_iter().filter(|code| *code != 0) {
                prop_assert!(joint_failure(command, interactor).unwrap().contains(&code.to_string()));
            }
        }

        #[test]
        fn a_command_reaches_its_limit_before_an_interactor_without_one(ms in 0_u64..u64::MAX / 2) {
            let limit = Duration::from_millis(ms);
            prop_assert!(interactor_time(None, limit) > limit);
            prop_assert_eq!(interactor_time(Some(limit), Duration::ZERO), limit);
        }
    }
}
