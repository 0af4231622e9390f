//! Pipes between the standard streams of two commands.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::fchown;
use std::sync::Arc;

use shim::User;

use crate::error::SandboxError;

/// Standard input and output of a command, each a pipe to or from another command. Without a copy of them elsewhere, the end of
/// one command is the end of input of the other.
#[derive(Debug)]
pub struct JoinedStreams {
    pub(crate) stdin: Arc<File>,
    pub(crate) stdout: Arc<File>,
}

impl JoinedStreams {
    /// The streams of two commands: what one writes to its standard output, the other reads from its standard input. The pipes
    /// belong to `user`, because scripts reopen `/dev/stdout` by its path.
    pub fn pair(user: Option<User>) -> Result<[Self; 2], SandboxError> {
        let pipe = || -> io::Result<[Arc<File>; 2]> {
            let (reader, writer) = io::pipe()?;
            let ends = [OwnedFd::from(reader), OwnedFd::from(writer)];
            if let Some(User { uid, gid }) = user {
                for end in &ends {
                    fchown(end, Some(uid), Some(gid))?;
                }
            }
            Ok(ends.map(|end| Arc::new(File::from(end))))
        };
        let failed = |error: io::Error| SandboxError::Resources(format!("cannot create a pipe: {error}"));
        let [[first, to_first], [second, to_second]] = [pipe().map_err(failed)?, pipe().map_err(failed)?];
        Ok([Self { stdin: first, stdout: to_second }, Self { stdin: second, stdout: to_first }])
    }
}
