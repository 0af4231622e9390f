//! Exit codes of commands that run something on the farm.

use clap::ValueEnum;

/// The option `--exit-code` of all commands that run something and wait for its end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExitCodeOf {
    /// Outcome: 0 succeeded, 1 failed, 2 rejected, 3 cancelled or expired, 4 farm unreachable
    #[default]
    Outcome,
    /// Exit code of the command as in a shell (128 + N if signal N killed it); as `outcome` if no command ended
    Command,
}

impl ExitCodeOf {
    /// The exit code for `outcome`, the exit code of the outcome, and `command`, the exit code of the command if one
    /// ended. Only its low eight bits count, as in a shell; a failure never results in 0.
    pub(crate) fn exit_code(self, command: Option<i32>, outcome: u8) -> u8 {
        let own = command.and_then(|code| u8::try_from(code & 0xff).ok());
        match (self, own) {
            (Self::Command, Some(code @ 1..)) => code,
            (Self::Command, Some(0) | None) | (Self::Outcome, _) => outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ExitCodeOf;

    #[test]
    fn the_command_counts_only_when_asked_for_and_when_it_ended() {
        let (command, outcome) = (ExitCodeOf::Command, ExitCodeOf::Outcome);
        assert_eq!(outcome.exit_code(Some(77), 1), 1);
        assert_eq!(command.exit_code(Some(77), 1), 77);
        assert_eq!(command.exit_code(Some(0), 0), 0);
        assert_eq!(command.exit_code(None, 3), 3);
        assert_eq!(command.exit_code(Some(137), 1), 137);
    }

    #[test]
    fn what_failed_never_looks_as_if_it_succeeded() {
        // The command succeeded, but its outputs could not be kept.
        assert_eq!(ExitCodeOf::Command.exit_code(Some(0), 1), 1);
        assert_eq!(ExitCodeOf::Command.exit_code(Some(256), 1), 1);
    }
}
