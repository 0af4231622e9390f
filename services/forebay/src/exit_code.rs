//! What the exit code of a command line says that ran something on the farm.

use clap::ValueEnum;

/// The flag `--exit-code`, of all commands that run something and wait for its end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExitCodeOf {
    /// How it ended: 0 succeeded, 1 failed, 2 refused, 3 cancelled or expired, 4 the farm was not reachable
    #[default]
    Outcome,
    /// The command's own, as a shell gives it (128 + N when signal N killed it); where no command ended, as `outcome`
    Command,
}

impl ExitCodeOf {
    /// The exit code, where `outcome` says how it ended, and `command` is the exit code of the command as far as one
    /// ended. The low eight bits of it count, as everywhere; of a failure they are never 0.
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
        // The command ended well, and then its outputs could not be kept.
        assert_eq!(ExitCodeOf::Command.exit_code(Some(0), 1), 1);
        assert_eq!(ExitCodeOf::Command.exit_code(Some(256), 1), 1);
    }
}
