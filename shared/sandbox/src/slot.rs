//! One slot: the process that runs its commands, and how it is started.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Seek as _, Write as _};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use invariant::impossible;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::{getegid, geteuid};
use shim::{Command, Deadline, Files, Filter, Options, PrivateNetwork, Shim, ShimError, WrapperFiles};
use tokio::sync::watch;

use crate::bubblewrap::{self, Alone, Bubblewrap, Call, INSIDE, PRIVATE, SlotNetwork, within};
use crate::cgroups::Group;
use crate::config::{Run, Sandbox, SlotConfig};
use crate::error::SandboxError;
use crate::image_root::ImageRoot;
use crate::joined_streams::JoinedStreams;
use crate::limits::{self, Guard};
use crate::log::Log;
use crate::outcome::{NotStarted, Outcome};
use crate::running::{Lease, RunContext, Running};
use crate::shared_network::SharedNetwork;

/// How much longer than its timeout and grace a command lives if the executor is stopped.
const BACKSTOP: std::time::Duration = std::time::Duration::from_secs(5);

/// Runs one command at a time. Dropping it kills all processes; [`Slot::stop`] waits for that, and only then can the
/// control groups be removed reliably.
#[derive(Debug)]
pub struct Slot {
    config: SlotConfig,
    /// Declared before the group, which can be removed only when it is empty.
    shim: Option<(Kind, Shim)>,
    group: Group,
}

/// A command for the shim, and the arguments of bubblewrap if it is started for this command.
type Prepared = (Command, Option<Arc<File>>);

/// The environment of the shim.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Kind {
    way: Way,
    /// The image that it is for, which is mounted if necessary.
    image: Option<MountedImage>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// A sandbox that is kept for many commands.
    Kept,
    /// No isolation from the host; bubblewrap may isolate each command.
    Bare,
}

impl Kind {
    /// Whether it serves one command only.
    fn is_for_one(&self) -> bool {
        self.image.as_ref().is_some_and(|image| image.0.writable_bytes.is_some())
    }
}

/// An image that is in use as long as the shim lives.
#[derive(Debug, Clone)]
struct MountedImage(ImageRoot);

impl PartialEq for MountedImage {
    fn eq(&self, other: &Self) -> bool {
        let (own, other) = (&self.0, &other.0);
        (&own.id, own.writable_bytes, own.user) == (&other.id, other.writable_bytes, other.user)
    }
}

impl Eq for MountedImage {}

impl Slot {
    /// Creates the folder and starts the process. Fails if this machine does not allow the sandbox.
    pub async fn start(mut config: SlotConfig) -> Result<Self, SandboxError> {
        config.work = absolute(&config.work)?;
        own_folder(&config.work)?;
        let group = config.cgroups.group(&config.name, config.processes_max, &config.cores, false);
        let mut slot = Self { config, shim: None, group };
        let way = slot.usual_way();
        slot.ready(Kind { way, image: None }).await?;
        if slot.config.sandbox == Sandbox::Bubblewrap && way == Way::Bare {
            // The sandbox has not been tested yet.
            slot.try_bubblewrap(None)?;
        }
        Ok(slot)
    }

    /// Checks whether this machine supports sandboxes for one command; the error says why not and how to fix it. A slot that
    /// keeps its sandbox needs them only for some commands.
    pub fn check_alone(&self) -> Result<(), SandboxError> {
        if self.config.sandbox == Sandbox::None {
            return Ok(());
        }
        self.check_access()?;
        self.check_shown()?;
        self.try_bubblewrap(None)
    }

    /// Checks whether this machine supports such a slot; the error says why not and how to fix it.
    pub async fn check(config: SlotConfig) -> Result<(), SandboxError> {
        Self::start(config).await?.stop().await
    }

    pub fn config(&self) -> &SlotConfig {
        &self.config
    }

    /// The host's process id of the slot's process (of the outermost one), while it lives.
    pub fn pid(&self) -> Option<u32> {
        self.shim.as_ref().and_then(|(_, shim)| shim.pid())
    }

    /// The path of an input root as a command sees it.
    pub fn path_inside(&self, run: &Run) -> PathBuf {
        match self.config.sandbox {
            Sandbox::None => run.root.clone(),
            Sandbox::Bubblewrap if run.root_is_input => PathBuf::from("/"),
            Sandbox::Bubblewrap => match self.way(run) {
                // A root without a name is refused when the command is started.
                Way::Kept => Path::new(INSIDE).join(run.root.file_name().unwrap_or_default()),
                Way::Bare => bubblewrap::INSIDE_ROOT.into(),
            },
        }
    }

    /// Replaces the process if it is dead, or its sandbox if a command left traces. [`Slot::run`] does this too; an
    /// earlier call, for example while outputs are stored, avoids the delay there.
    pub async fn refresh(&mut self) -> Result<(), SandboxError> {
        self.settle().await?;
        match self.shim.as_ref().map(|(kind, _)| kind.clone()) {
            Some(kind) => self.ready(kind).await,
            None => Ok(()),
        }
    }

    /// Returns when a command that was dropped before its end is dead and its events are consumed. [`Slot::run`] does
    /// this first; an earlier call ensures that processes of that command do not interfere with the slot's folder.
    /// What the command wrote into the folders of its image is gone then. May be dropped and called again.
    pub async fn settle(&mut self) -> Result<(), SandboxError> {
        if let Some((kind, shim)) = &mut self.shim {
            // A process that has ended or violates the protocol is replaced, too.
            let is_over = shim.settle().await.is_err();
            if is_over || kind.is_for_one() {
                self.end_shim().await?;
            }
        }
        Ok(())
    }

    pub async fn run(&mut self, run: Run) -> Result<Running<'_>, SandboxError> {
        self.start_command(run, None).await
    }

    /// Like [`Slot::run`], with streams that are joined to those of another command. Its file of standard output stays empty.
    pub async fn run_joined(
        &mut self,
        run: Run,
        streams: JoinedStreams,
    ) -> Result<Running<'_>, SandboxError> {
        self.start_command(run, Some(streams)).await
    }

    async fn start_command(
        &mut self,
        mut run: Run,
        streams: Option<JoinedStreams>,
    ) -> Result<Running<'_>, SandboxError> {
        if self.config.sandbox == Sandbox::None {
            if run.root_is_input {
                return Err(SandboxError::RootNeedsBubblewrap);
            }
            if run.image.is_some() {
                return Err(SandboxError::ImageNeedsBubblewrap);
            }
            if self.config.network.is_some() {
                return Err(SandboxError::NetworkNeedsBubblewrap);
            }
        }
        if run.image.as_ref().is_some_and(|image| image.writable_bytes.is_some() && image.lower.is_empty()) {
            return Err(SandboxError::WritableNeedsOverlay);
        }
        run.root = absolute(&run.root)?;
        if run.root.file_name().is_none() || run.root.parent() != Some(self.config.work.as_path()) {
            let why = "it must be a direct child of the slot's folder";
            return Err(SandboxError::Root { path: run.root, why });
        }
        // Files, usage and output of the previous command must not affect this one.
        self.settle().await?;
        let (over, heard) = watch::channel(false);
        let log = |path: &Path| {
            let log = Log::create(path, self.config.user, heard.clone());
            log.map_err(|source| SandboxError::file("creating", path, source))
        };
        let (stdout, stderr) = (log(&run.stdout)?, log(&run.stderr)?);
        let kind = Kind { way: self.way(&run), image: run.image.clone().map(MountedImage) };
        let alone = self.config.sandbox == Sandbox::Bubblewrap && kind.way == Way::Bare;
        let status = alone.then(|| memory_file("status", b"")).transpose()?;
        let made = if run.root_is_input { missing_mount_points(&run.root) } else { Vec::new() };
        let command = self.command(&run, alone);
        self.ready(kind).await?;
        let own = || self.shim.as_ref().and_then(|(_, shim)| shim.own_cpu());
        let guard = Guard::new(&run, &made, &self.group, own);
        let lease = self.config.lease.clone().map(|deadline| Lease::new(deadline, latest(&run)));
        let context = RunContext { run, stdout, stderr, status, made, over, guard, lease };
        let (command, arguments) = match command? {
            Ok(command) => command,
            Err((why, message)) => {
                return Ok(Running::not_started(context, Outcome::NotStarted { why, message }));
            }
        };
        let (memory, processes) = limits::groups(&context.run, alone);
        self.group.begin(memory, processes)?;
        let uid = self.config.user.map_or_else(|| geteuid().as_raw(), |user| user.uid);
        let limits = limits::shims(&context.run, context.guard.as_ref(), &self.group, uid);
        let files = context.files(arguments, streams);
        let Some((_, shim)) = &mut self.shim else {
            impossible!("a slot that is ready has no process");
            return Err(ShimError::Gone.into());
        };
        match shim.run_into(&command, files, &limits).await {
            Ok(running) => Ok(Running::started(context, running, &self.group)),
            Err(ShimError::TooLarge { bytes, limit }) => {
                let message = format!("the command has {bytes} bytes, the limit is {limit}");
                Ok(Running::not_started(context, Outcome::NotStarted { why: NotStarted::TooLarge, message }))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Ends the process; returns when all its processes are dead and the slot's control groups are removed.
    pub async fn stop(mut self) -> Result<(), SandboxError> {
        self.end_shim().await
    }

    /// Ends the process in place: while it is dying, it must not look as if there were none.
    async fn end_shim(&mut self) -> Result<(), SandboxError> {
        if let Some((_, shim)) = &mut self.shim {
            shim.end().await?;
        }
        self.shim = None;
        Ok(())
    }

    /// The way for commands that need nothing special.
    fn usual_way(&self) -> Way {
        match self.config.sandbox {
            Sandbox::Bubblewrap if self.config.user.is_some() && !self.config.is_bare => Way::Kept,
            Sandbox::Bubblewrap | Sandbox::None => Way::Bare,
        }
    }

    /// A kept sandbox has nothing of the host that later commands must not have.
    fn way(&self, run: &Run) -> Way {
        if run.root_is_input || run.shares_network || !run.devices.is_empty() {
            return Way::Bare;
        }
        self.usual_way()
    }

    /// Ensures that there is a process of this kind, unused or clean.
    async fn ready(&mut self, kind: Kind) -> Result<(), SandboxError> {
        if let Some((had, shim)) = &mut self.shim
            && *had == kind
            && !shim.is_spent()
            && !shim.is_gone()
        {
            return Ok(());
        }
        self.end_shim().await?;
        let mut options = Options {
            user: self.config.user,
            join: self.group.join_files(),
            processes_max: self.config.processes_max.filter(|_| !self.group.limits_processes()),
            filter: self.config.bubblewrap.filter.then_some(Filter::Escapes),
            overlay: kind.image.as_ref().and_then(|it| it.0.overlay(self.config.user, Vec::new())),
            network: self
                .config
                .network
                .as_ref()
                .map(SharedNetwork::pid)
                .transpose()?
                .map(PrivateNetwork::Of),
            shares_network: self.config.network.is_some(),
            cores: self.config.cores.clone(),
            kernel_deadline: self.config.lease.is_some(),
            ..Options::default()
        };
        let network = self.network(false);
        match kind.way {
            Way::Kept => {
                options.wrapper = match &kind.image {
                    None => self.config.bubblewrap.kept(&self.config.work, network)?,
                    Some(image) => {
                        self.config.bubblewrap.kept_in_image(&image.0, &self.config.work, network)?
                    }
                };
                options.inner_user = kind.image.as_ref().and_then(|image| image.0.user);
                options.tidy = PRIVATE.map(PathBuf::from).to_vec();
            }
            Way::Bare => self.check_access()?,
        }
        let shim = match Shim::start_with(&self.config.program, &options).await {
            Ok(shim) => shim,
            Err(error) => {
                // An image may not have the program that is tried.
                if kind.way == Way::Kept && kind.image.is_none() {
                    self.try_bubblewrap(Some(options.wrapper))?;
                }
                return Err(error.into());
            }
        };
        tracing::debug!(slot = self.config.name, ?kind, mode = ?shim.mode(), "started a new process for the slot");
        self.shim = Some((kind, shim));
        Ok(())
    }

    /// The network of a command, which may ask for that of the host.
    fn network(&self, is_host: bool) -> SlotNetwork<'_> {
        match &self.config.network {
            Some(network) => SlotNetwork::Shared { hosts: network.hosts() },
            None if is_host => SlotNetwork::Host,
            None => SlotNetwork::Own,
        }
    }

    /// Runs bubblewrap with an empty command to get its error message.
    fn try_bubblewrap(&self, call: Option<Call>) -> Result<(), SandboxError> {
        Bubblewrap::attempt(match call {
            Some(call) => call,
            None => self.config.bubblewrap.alone(Alone::in_root(&self.config.work))?,
        })
    }

    /// Whether the commands' user can enter the slot's folder by its path.
    fn check_access(&self) -> Result<(), SandboxError> {
        match self.first_closed(&self.config.work) {
            Some((uid, folder)) => Err(SandboxError::Closed { uid, folder }),
            None => Ok(()),
        }
    }

    /// Whether the commands' user can reach what a sandbox for one command shows of the host: bubblewrap runs as that user.
    fn check_shown(&self) -> Result<(), SandboxError> {
        for shown in self.config.bubblewrap.read_only.iter().filter(|shown| shown.exists()) {
            if let Some((uid, folder)) = shown.parent().and_then(|parent| self.first_closed(parent)) {
                return Err(SandboxError::ClosedShown { uid, folder, shown: shown.clone() });
            }
        }
        Ok(())
    }

    /// The first folder on the way to this one, from its end, that the commands' user cannot enter, and that user.
    fn first_closed(&self, folder: &Path) -> Option<(u32, PathBuf)> {
        let user = self.config.user?;
        let is_closed = |folder: &&Path| {
            let Ok(metadata) = fs::metadata(folder) else { return false };
            let bits = match metadata.uid() == user.uid {
                true => 0o100,
                false if metadata.gid() == user.gid => 0o010,
                false => 0o001,
            };
            metadata.mode() & bits == 0
        };
        folder.ancestors().find(is_closed).map(|closed| (user.uid, closed.to_owned()))
    }

    /// Prepares a command for the shim; the inner error is the command's fault.
    fn command(
        &self,
        run: &Run,
        alone: bool,
    ) -> Result<Result<Prepared, (NotStarted, String)>, SandboxError> {
        if !run.cwd.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir)) {
            let message = format!("the working directory {} is outside the input root", run.cwd.display());
            return Ok(Err((NotStarted::WorkingDirectory, message)));
        }
        if run.argv.is_empty() {
            return Ok(Err((NotStarted::Invalid, "the command is empty".to_owned())));
        }
        let (mut argv, mut cwd) = (run.argv.clone(), within(&self.path_inside(run), &run.cwd));
        let mut arguments = None;
        if alone {
            if !run.root_is_input && run.image.is_none() {
                self.check_shown()?;
            }
            let bubblewrap =
                self.config.bubblewrap.with_room([run.limits.disk_bytes, run.limits.memory_bytes]);
            let call = bubblewrap.alone(Alone {
                root: &run.root,
                cwd: &run.cwd,
                as_root: run.root_is_input,
                image: run.image.as_ref(),
                devices: &run.devices,
                network: self.network(run.shares_network),
            })?;
            let (program, hidden) = bubblewrap::by_file(call);
            arguments = Some(memory_file("arguments", &hidden)?);
            let not_text = |path: OsString| SandboxError::Root { path: path.into(), why: "it is not UTF-8" };
            let descriptor = shim::ARGUMENTS_DESCRIPTOR.to_string();
            argv = vec![
                program.into_string().map_err(not_text)?,
                "--args".to_owned(),
                descriptor,
                "--".to_owned(),
            ];
            argv.extend(run.argv.iter().cloned());
            cwd = "/".into();
        }
        let lease = self.config.lease.as_ref().map(|deadline| *deadline.borrow());
        let deadline = latest(run).into_iter().chain(lease).min();
        Ok(Ok((Command { argv, env: run.env.clone(), cwd, deadline }, arguments)))
    }
}

/// When a command must be dead that is not ended at its timeout.
fn latest(run: &Run) -> Option<Deadline> {
    let longest = run.timeout?.saturating_add(run.kill_grace).saturating_add(BACKSTOP);
    Some(Deadline::after(longest))
}

impl RunContext {
    fn files(&self, arguments: Option<Arc<File>>, streams: Option<JoinedStreams>) -> Files {
        let (stdin, stdout) = match streams {
            Some(JoinedStreams { stdin, stdout }) => (Some(stdin), stdout),
            None => (None, self.stdout.descriptor()),
        };
        let stderr = self.stderr.descriptor();
        let wrapper = self.status.clone().zip(arguments);
        let wrapper = wrapper.map(|(status, arguments)| WrapperFiles { status, arguments });
        Files { stdin, stdout, stderr, wrapper }
    }
}

/// A file in memory with this content, to be read from its beginning.
fn memory_file(name: &str, content: &[u8]) -> Result<Arc<File>, SandboxError> {
    let made = memfd_create(name, MFdFlags::MFD_CLOEXEC).map_err(std::io::Error::from).and_then(|file| {
        let mut file = File::from(file);
        file.write_all(content)?;
        file.rewind()?;
        Ok(file)
    });
    made.map(Arc::new).map_err(|error| SandboxError::Resources(error.to_string()))
}

fn absolute(path: &Path) -> Result<PathBuf, SandboxError> {
    std::path::absolute(path).map_err(|source| SandboxError::file("resolving", path, source))
}

/// Creates the folder so that only its owner can change it: a command must not replace its root with another folder.
fn own_folder(folder: &Path) -> Result<(), SandboxError> {
    let made = fs::create_dir_all(folder)
        .and_then(|()| fs::set_permissions(folder, fs::Permissions::from_mode(0o755)))
        .and_then(|()| chown(folder, Some(geteuid().as_raw()), Some(getegid().as_raw())));
    made.map_err(|source| SandboxError::file("creating", folder, source))
}

/// The mount points that bubblewrap will create in an input root.
fn missing_mount_points(root: &Path) -> Vec<PathBuf> {
    let points = ["proc", "dev", "tmp"].map(|name| root.join(name));
    points.into_iter().filter(|point| fs::symlink_metadata(point).is_err()).collect()
}
