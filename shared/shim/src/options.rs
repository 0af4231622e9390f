//! The options of a shim, and their form on its command line.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use crate::filter::Filter;
use crate::model::Mode;
use crate::private_network::{PrivateNetwork, Probe, Question};

/// The descriptor at which a wrapper finds its status file.
pub const STATUS_DESCRIPTOR: i32 = 100;
/// The descriptor at which a wrapper finds its arguments: other processes, also those of its command, cannot read them.
pub const ARGUMENTS_DESCRIPTOR: i32 = 103;

/// The options of a shim. [`crate::Shim::start`] uses the default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// How it tracks the processes of its commands; `None` means the best mode that the machine allows.
    pub mode: Option<Mode>,
    /// The user that the shim, and therefore every command, switches to after creating its namespaces. Requires root.
    /// The commands of such a shim cannot gain rights by executing set-user-ID programs.
    pub user: Option<User>,
    /// The `cgroup.procs` files of the control groups that it enters first.
    pub join: Vec<PathBuf>,
    /// Maximum number of processes and threads of its user, on the whole machine (`RLIMIT_NPROC`).
    pub processes_max: Option<u64>,
    /// A program and arguments that create the namespaces instead of the shim: the path of an executable and its
    /// arguments are appended, and this must become the first process of a new PID namespace.
    pub wrapper: Vec<OsString>,
    /// System calls that are refused to commands: by the shim to itself if it has a `wrapper`, and otherwise by commands
    /// that have [`Files::wrapper`], which find the filters at [`crate::FILTER_DESCRIPTORS`].
    pub filter: Option<Filter>,
    /// The user that commands see themselves as, in a user namespace that has no other ids. Outside they are `user`, and
    /// they have no right over anything.
    pub inner_user: Option<User>,
    /// Private folders that are emptied after each command. If there are any, a shim also checks for other traces of
    /// a command in its IPC and network namespaces; see [`crate::Shim::is_spent`].
    pub tidy: Vec<PathBuf>,
    /// The processors and the memory that it and its commands use.
    pub cores: Cores,
    /// The network that it enters first; `None` leaves it in that of its owner.
    pub network: Option<PrivateNetwork>,
    /// File systems that it mounts first, in a mount namespace of its own.
    pub overlay: Option<Overlay>,
    /// Whether others use its network, too: then sockets in it are no traces of a command.
    pub shares_network: bool,
    /// Whether the kernel enforces deadlines too: then a shim that is stopped together with its command dies with it.
    /// Without a PID namespace of the shim this has no effect.
    pub kernel_deadline: bool,
}

/// Processors and NUMA nodes of a machine, by their numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cores {
    /// Processors that are used; empty for all.
    pub processors: Vec<u16>,
    /// NUMA nodes whose memory is used; empty for all.
    pub memory_nodes: Vec<u16>,
}

/// Folders that are combined: an overlay mount of Linux. Requires root.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Overlay {
    /// The folders, the topmost first; at least two.
    pub lower: Vec<PathBuf>,
    /// The folder that they are mounted on.
    pub at: PathBuf,
    /// Maximum bytes that can be written to it, which are kept in memory and vanish with the shim; `None` makes it read-only.
    pub writable_bytes: Option<u64>,
    /// Absolute paths of folders that it has, whatever the lower folders have there: no link of these leads elsewhere. Without
    /// `writable_bytes` there can be none.
    pub folders: Vec<PathBuf>,
    /// The user whom all its folders belong to, whatever the lower ones say: so that user can add, replace and remove files in
    /// them. Without `writable_bytes` there can be none.
    pub owner: Option<User>,
    /// Two users whose files in `lower` are exchanged: what belongs to one appears as the other's. Where the kernel cannot do
    /// this, files keep their owners.
    pub exchanged: Option<[User; 2]>,
}

/// A user and a group, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct User {
    pub uid: u32,
    /// The only group id; there are no supplementary groups.
    pub gid: u32,
}

impl User {
    fn text(self) -> String {
        format!("{}:{}", self.uid, self.gid)
    }
}

/// Open files that receive a command's output instead of pipes: no byte passes through shim and worker.
#[derive(Debug)]
pub struct Files {
    /// The command's standard input; `None` means `/dev/null`.
    pub stdin: Option<Arc<File>>,
    /// Receives the command's standard output.
    pub stdout: Arc<File>,
    /// Receives the command's standard error.
    pub stderr: Arc<File>,
    /// Set if the command is a wrapper that starts the real one in its own namespaces. SIGTERM is sent to its descendants
    /// and not to the wrapper.
    pub wrapper: Option<WrapperFiles>,
}

impl Files {
    /// The files in the order in which they are sent.
    pub(crate) fn in_order(self) -> Vec<Arc<File>> {
        let of_wrapper = self.wrapper.into_iter().flat_map(|files| [files.status, files.arguments]);
        [self.stdout, self.stderr].into_iter().chain(self.stdin).chain(of_wrapper).collect()
    }
}

/// Open files that only a wrapper gets.
#[derive(Debug, Clone)]
pub struct WrapperFiles {
    /// Receives its status, at [`STATUS_DESCRIPTOR`].
    pub status: Arc<File>,
    /// Contains arguments, at [`ARGUMENTS_DESCRIPTOR`].
    pub arguments: Arc<File>,
}

impl Options {
    /// The arguments after `shim` for the outer process.
    pub(crate) fn outer_arguments(&self) -> Vec<OsString> {
        let mut arguments = Vec::new();
        if let Some(mode) = self.mode {
            arguments.extend(["--mode".into(), mode.name().into()]);
        }
        for file in &self.join {
            arguments.extend(["--join".into(), file.into()]);
        }
        let Cores { processors, memory_nodes } = &self.cores;
        for (name, numbers) in [("--cores", processors), ("--memory-nodes", memory_nodes)] {
            if !numbers.is_empty() {
                let numbers: Vec<String> = numbers.iter().map(u16::to_string).collect();
                arguments.extend([name.into(), numbers.join(",").into()]);
            }
        }
        if let Some(network) = self.network {
            arguments.extend(["--network".into(), network.text().into()]);
        }
        if let Some(Overlay { lower, at, writable_bytes, folders, owner, exchanged }) = &self.overlay {
            arguments.extend(["--overlay".into(), at.into()]);
            if let Some(bytes) = writable_bytes {
                arguments.extend(["--writable".into(), bytes.to_string().into()]);
            }
            if let Some(owner) = owner {
                arguments.extend(["--owner".into(), owner.text().into()]);
            }
            if let Some([one, other]) = exchanged {
                arguments.extend(["--exchange".into(), one.text().into(), other.text().into()]);
            }
            for folder in lower {
                arguments.extend(["--lower".into(), folder.into()]);
            }
            for folder in folders {
                arguments.extend(["--folder".into(), folder.into()]);
            }
        }
        self.put_common(&mut arguments);
        if !self.wrapper.is_empty() {
            arguments.push("--".into());
            arguments.extend_from_slice(&self.wrapper);
        }
        arguments
    }

    /// The arguments after `shim` for the inner process.
    pub(crate) fn inner_arguments(&self, mode: Mode) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = vec!["--init".into(), mode.name().into()];
        if !self.wrapper.is_empty() {
            arguments.push("--wrapped".into());
        }
        self.put_common(&mut arguments);
        arguments
    }

    fn put_common(&self, arguments: &mut Vec<OsString>) {
        if let Some(user) = self.user {
            arguments.extend(["--user".into(), user.text().into()]);
        }
        if let Some(user) = self.inner_user {
            arguments.extend(["--inner-user".into(), user.text().into()]);
        }
        if let Some(processes) = self.processes_max {
            arguments.extend(["--processes".into(), processes.to_string().into()]);
        }
        for folder in &self.tidy {
            arguments.extend(["--tidy".into(), folder.into()]);
        }
        if let Some(filter) = self.filter {
            arguments.extend(["--filter".into(), filter.as_str().into()]);
        }
        if self.shares_network {
            arguments.push("--shares-network".into());
        }
        if self.kernel_deadline {
            arguments.push("--kernel-deadline".into());
        }
    }
}

/// The argument of a process that holds a user namespace.
pub(crate) const NAMESPACE: &str = "--namespace";

/// The role that a command line requests.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Creates the namespaces and waits.
    Outer(Options),
    /// Serves the worker, in the namespaces of a wrapper if `wrapped`.
    Inner { mode: Mode, wrapped: bool, options: Options },
    /// Holds a user namespace until its standard input ends.
    Namespace,
    /// Waits until a server in a network is ready.
    Probe { network: PrivateNetwork, question: Question },
}

/// Parses the arguments after `shim`; `None` if a worker did not write them.
pub(crate) fn role(arguments: impl IntoIterator<Item = OsString>) -> Option<Role> {
    let mut arguments = arguments.into_iter();
    let (mut options, mut init, mut wrapped) = (Options::default(), None, false);
    let (mut address, mut probe) = (None, None);
    while let Some(name) = arguments.next() {
        match name.to_str()? {
            "--" => options.wrapper = arguments.by_ref().collect(),
            "--wrapped" => wrapped = true,
            NAMESPACE => return arguments.next().is_none().then_some(Role::Namespace),
            "--mode" => options.mode = Some(Mode::from_name(arguments.next()?.to_str()?)?),
            "--init" => init = Some(Mode::from_name(arguments.next()?.to_str()?)?),
            "--user" => options.user = Some(user(&arguments.next()?)?),
            "--inner-user" => options.inner_user = Some(user(&arguments.next()?)?),
            "--exchange" => {
                let users = [user(&arguments.next()?)?, user(&arguments.next()?)?];
                options.overlay.as_mut()?.exchanged = Some(users);
            }
            "--processes" => options.processes_max = Some(arguments.next()?.to_str()?.parse().ok()?),
            "--overlay" => {
                let at = arguments.next()?.into();
                options.overlay = Some(Overlay { at, ..Overlay::default() });
            }
            "--writable" => {
                options.overlay.as_mut()?.writable_bytes = Some(arguments.next()?.to_str()?.parse().ok()?);
            }
            "--cores" => options.cores.processors = numbers(&arguments.next()?)?,
            "--memory-nodes" => options.cores.memory_nodes = numbers(&arguments.next()?)?,
            "--network" => options.network = Some(PrivateNetwork::parse(arguments.next()?.to_str()?)?),
            "--at" => address = Some(arguments.next()?.to_str()?.parse().ok()?),
            "--tcp" => probe = Some(Probe::Tcp(arguments.next()?.to_str()?.parse().ok()?)),
            "--http" => {
                let port = arguments.next()?.to_str()?.parse().ok()?;
                probe = Some(Probe::Http { port, path: arguments.next()?.into_string().ok()? });
            }
            "--owner" => options.overlay.as_mut()?.owner = Some(user(&arguments.next()?)?),
            "--folder" => options.overlay.as_mut()?.folders.push(arguments.next()?.into()),
            "--lower" => options.overlay.as_mut()?.lower.push(arguments.next()?.into()),
            "--join" => options.join.push(arguments.next()?.into()),
            "--filter" => options.filter = Some(Filter::from_name(arguments.next()?.to_str()?)?),
            "--shares-network" => options.shares_network = true,
            "--kernel-deadline" => options.kernel_deadline = true,
            "--tidy" => options.tidy.push(arguments.next()?.into()),
            _ => return None,
        }
    }
    Some(match (init, probe) {
        (Some(mode), None) => Role::Inner { mode, wrapped, options },
        (None, None) => Role::Outer(options),
        (_, Some(probe)) => {
            Role::Probe { network: options.network?, question: Question { address: address?, probe } }
        }
    })
}

fn numbers(text: &OsStr) -> Option<Vec<u16>> {
    text.to_str()?.split(',').map(|number| number.parse().ok()).collect()
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
            filter: Some(Filter::Internet),
            inner_user: Some(User { uid: 16, gid: 17 }),
            cores: Cores { processors: vec![0, 31], memory_nodes: vec![1] },
            network: Some(PrivateNetwork::Of(12)),
            overlay: Some(Overlay {
                lower: vec!["/c".into(), "/d".into()],
                at: "/e".into(),
                writable_bytes: Some(13),
                folders: vec!["/f/g".into()],
                owner: Some(User { uid: 14, gid: 15 }),
                exchanged: Some([User { uid: 16, gid: 17 }, User { uid: 14, gid: 15 }]),
            }),
            shares_network: true,
            kernel_deadline: true,
        };
        assert_eq!(role(options.outer_arguments()), Some(Role::Outer(options.clone())));
        let inner = role(options.inner_arguments(Mode::PidNamespace)).unwrap();
        let Role::Inner { mode, wrapped: true, options: inner } = inner else { panic!("{inner:?}") };
        assert_eq!(mode, Mode::PidNamespace);
        assert_eq!((inner.user, inner.processes_max), (options.user, options.processes_max));
        assert_eq!(inner.inner_user, options.inner_user);
        assert_eq!(inner.tidy, options.tidy);
        assert!(inner.kernel_deadline && inner.shares_network);
        assert_eq!(inner.filter, options.filter);
        for probe in [Probe::Tcp(5), Probe::Http { port: 6, path: "/ready".into() }] {
            let network = ["--network", "new"].map(OsString::from);
            let question = Question { address: [127, 0, 0, 7].into(), probe };
            let read = role(network.into_iter().chain(question.arguments()));
            assert_eq!(read, Some(Role::Probe { network: PrivateNetwork::New, question }));
        }
        assert_eq!(role([NAMESPACE.into()]), Some(Role::Namespace));
        for foreign in [
            vec![NAMESPACE, "--user"],
            vec!["--help"],
            vec!["--user", "root"],
            vec!["--mode"],
            vec!["--lower", "/a"],
            vec!["--overlay", "/a", "--exchange", "1:2"],
            vec!["--tcp", "5"],
            vec!["--network", "new", "--tcp", "5"],
            vec!["--cores", "a"],
            vec!["--memory-nodes", ""],
            vec!["bwrap"],
        ] {
            assert_eq!(role(foreign.into_iter().map(OsString::from)), None);
        }
    }
}
