//! How a shim is to be, and how that is told on its command line.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use crate::model::Mode;

/// The descriptor at which a wrapper ([`Files::status`]) finds its status file.
pub const STATUS_DESCRIPTOR: i32 = 100;

/// How a shim is to be. The default is what [`crate::Shim::start`] starts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// How it holds on to the processes of its commands; `None` means the best that the machine allows.
    pub mode: Option<Mode>,
    /// Whom the shim, and so every command of it, becomes once its namespaces are made. It takes root to say so.
    /// The commands of such a shim cannot gain rights by executing set-user-ID programs.
    pub user: Option<User>,
    /// The `cgroup.procs` files of the control groups that it enters before anything else.
    pub join: Vec<PathBuf>,
    /// The most processes and threads of its user, on the whole machine (`RLIMIT_NPROC`).
    pub processes_max: Option<u64>,
    /// A program and arguments that make the namespaces in the shim's stead: the path of an executable and
    /// arguments to execute are added, and it must become the first process of a new PID namespace.
    pub wrapper: Vec<OsString>,
    /// Private folders that are emptied after each command. With any, a shim also looks for other traces that a
    /// command may leave in its IPC and network namespaces; see [`crate::Shim::is_spent`].
    pub tidy: Vec<PathBuf>,
    /// Has the kernel keep the deadlines of commands too: a shim that is stopped together with its command dies with it
    /// then. Without a PID namespace of the shim's own making this has no effect.
    pub kernel_deadline: bool,
}

/// A user and a group, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct User {
    /// The user.
    pub uid: u32,
    /// The only group.
    pub gid: u32,
}

/// Open files that take a command's outputs in place of pipes: no byte goes through shim and worker.
#[derive(Debug)]
pub struct Files {
    /// Takes its standard output.
    pub stdout: OwnedFd,
    /// Takes its standard error.
    pub stderr: OwnedFd,
    /// Says that the command is a wrapper which starts the real one in namespaces of its own. It gets this
    /// file at [`STATUS_DESCRIPTOR`]; and SIGTERM is sent to what it started, not to itself.
    pub status: Option<OwnedFd>,
}

impl Options {
    /// The arguments behind `shim` for the outer process.
    pub(crate) fn outer_arguments(&self) -> Vec<OsString> {
        let mut arguments = Vec::new();
        if let Some(mode) = self.mode {
            arguments.extend(["--mode".into(), mode.name().into()]);
        }
        for file in &self.join {
            arguments.extend(["--join".into(), file.into()]);
        }
        self.put_common(&mut arguments);
        if !self.wrapper.is_empty() {
            arguments.push("--".into());
            arguments.extend_from_slice(&self.wrapper);
        }
        arguments
    }

    /// The arguments behind `shim` for the inner process.
    pub(crate) fn inner_arguments(&self, mode: Mode) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = vec!["--init".into(), mode.name().into()];
        if !self.wrapper.is_empty() {
            arguments.push("--wrapped".into());
        }
        self.put_common(&mut arguments);
        arguments
    }

    fn put_common(&self, arguments: &mut Vec<OsString>) {
        if let Some(User { uid, gid }) = self.user {
            arguments.extend(["--user".into(), format!("{uid}:{gid}").into()]);
        }
        if let Some(processes) = self.processes_max {
            arguments.extend(["--processes".into(), processes.to_string().into()]);
        }
        for folder in &self.tidy {
            arguments.extend(["--tidy".into(), folder.into()]);
        }
        if self.kernel_deadline {
            arguments.push("--kernel-deadline".into());
        }
    }
}

/// What a command line asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// To make the namespaces and wait.
    Outer(Options),
    /// To do the work; inside what a wrapper made if `wrapped`.
    Inner { mode: Mode, wrapped: bool, options: Options },
}

/// Reads the arguments behind `shim`; `None` if no worker wrote them.
pub(crate) fn role(arguments: impl IntoIterator<Item = OsString>) -> Option<Role> {
    let mut arguments = arguments.into_iter();
    let (mut options, mut init, mut wrapped) = (Options::default(), None, false);
    while let Some(name) = arguments.next() {
        match name.to_str()? {
            "--" => options.wrapper = arguments.by_ref().collect(),
            "--wrapped" => wrapped = true,
            "--mode" => options.mode = Some(Mode::from_name(arguments.next()?.to_str()?)?),
            "--init" => init = Some(Mode::from_name(arguments.next()?.to_str()?)?),
            "--user" => options.user = Some(user(&arguments.next()?)?),
            "--processes" => options.processes_max = Some(arguments.next()?.to_str()?.parse().ok()?),
            "--join" => options.join.push(arguments.next()?.into()),
            "--kernel-deadline" => options.kernel_deadline = true,
            "--tidy" => options.tidy.push(arguments.next()?.into()),
            _ => return None,
        }
    }
    Some(match init {
        Some(mode) => Role::Inner { mode, wrapped, options },
        None => Role::Outer(options),
    })
}

fn user(text: &OsStr) -> Option<User> {
    let (uid, gid) = text.to_str()?.split_once(':')?;
    Some(User { uid: uid.parse().ok()?, gid: gid.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_survive_the_command_line() {
        assert_eq!(role([]), Some(Role::Outer(Options::default())));
        let options = Options {
            mode: Some(Mode::Subreaper),
            user: Some(User { uid: 7, gid: 8 }),
            join: vec!["/a".into(), "/b".into()],
            processes_max: Some(9),
            wrapper: vec!["bwrap".into(), "--user".into()],
            tidy: vec!["/tmp".into()],
            kernel_deadline: true,
        };
        assert_eq!(role(options.outer_arguments()), Some(Role::Outer(options.clone())));
        let inner = role(options.inner_arguments(Mode::PidNamespace)).unwrap();
        let Role::Inner { mode, wrapped: true, options: inner } = inner else { panic!("{inner:?}") };
        assert_eq!(mode, Mode::PidNamespace);
        assert_eq!((inner.user, inner.processes_max), (options.user, options.processes_max));
        assert_eq!((inner.tidy, inner.kernel_deadline), (options.tidy, options.kernel_deadline));
        for foreign in [vec!["--help"], vec!["--user", "root"], vec!["--mode"], vec!["bwrap"]] {
            assert_eq!(role(foreign.into_iter().map(OsString::from)), None);
        }
    }
}
