//! The processes of a workspace: a shim for the preparation, and one inside the sandbox for the commands of builds. Without a
//! sandbox, one shim runs both.

use std::{
    fs::{self, Permissions},
    io,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use images::Image;
use sandbox::{ImageRoot, SecretMount, SharedNetwork, WorkspaceLimits, WorkspaceSandbox};
use shim::{Options, Shim, ShimError};

use crate::{
    folder::RunFolder,
    owner::{self, WorkspaceUsers},
};

/// Runs the commands of one workspace.
pub(crate) struct WorkspaceShim {
    program: PathBuf,
    plain: Shim,
    limits: Arc<WorkspaceLimits>,
    /// The users of sandboxed builds.
    users: WorkspaceUsers,
    inside: Option<Inside>,
}

/// What a build has of its own in its sandbox.
pub(crate) struct BuildParts {
    /// The image whose files it sees.
    pub(crate) image: Option<Arc<Image>>,
    /// Most that it may write into this image, in bytes; `None` if that is read-only.
    pub(crate) writable_bytes: Option<u64>,
    /// The network that it shares with its services.
    pub(crate) network: Option<SharedNetwork>,
    /// The secrets of its build.
    pub(crate) secrets: Option<SecretMount>,
}

/// A shim in a sandbox around a folder.
struct Inside {
    shim: Shim,
    sandbox: Arc<WorkspaceSandbox>,
    /// The image whose files are in it, which stay as long as this exists.
    image: Option<Arc<Image>>,
    /// Device and number of each of its folders: a new one at the same path is not visible in the sandbox.
    folders: Vec<(u64, u64)>,
    /// Whether no other build may have it: its network is that of services, its image can be written to, or it has secrets.
    is_for_one: bool,
    /// Whether there may be traces of a build outside of these folders: without processes that stay, the shim removes
    /// them after each command, or reports that it cannot.
    has_traces: bool,
}

impl Inside {
    fn note_traces(&mut self) {
        self.has_traces |= self.shim.has_survivors() || self.shim.is_spent();
    }
}

impl WorkspaceShim {
    /// Starts a shim for builds: a process tree that was frozen as a whole when its lease expired dies without running
    /// again. The sandbox is started for the first command in it.
    pub(crate) async fn start(
        program: &Path,
        limits: Arc<WorkspaceLimits>,
        users: WorkspaceUsers,
    ) -> Result<Self, ShimError> {
        let join = limits.join_files();
        let options = Options { kernel_deadline: true, join, ..Options::default() };
        let plain = Shim::start_with(program, &options).await?;
        Ok(Self { program: program.to_owned(), plain, limits, users, inside: None })
    }

    /// The limits of the workspace.
    pub(crate) fn limits(&self) -> Arc<WorkspaceLimits> {
        self.limits.clone()
    }

    /// The shim for programs of the worker, which see the machine.
    pub(crate) fn plain(&mut self) -> &mut Shim {
        &mut self.plain
    }

    /// Gives the files of the workspace to the user of a build in this image, if it has one.
    pub(crate) async fn give(&self, folder: &RunFolder, image: Option<&Image>) -> io::Result<()> {
        let user = self.users.of_build(image);
        let places = folder.writable()?;
        // An empty folder may be left by a build of another user.
        places.iter().try_for_each(|place| owner::give_folder(place, user))?;
        let Some(user) = user else { return Ok(()) };
        // The folder that holds the others, which only the user of the worker may enter with some umasks.
        fs::set_permissions(folder.root(), Permissions::from_mode(0o755))?;
        let giving = move || places.iter().try_for_each(|place| owner::give(place, user));
        tokio::task::spawn_blocking(giving).await.map_err(io::Error::other).and_then(|given| given)
    }

    /// The shim for the commands of a build in `folder`, in this sandbox.
    pub(crate) async fn of_build(
        &mut self,
        folder: &RunFolder,
        sandbox: Option<&Arc<WorkspaceSandbox>>,
        own: &BuildParts,
    ) -> Result<&mut Shim, ShimError> {
        let BuildParts { image, writable_bytes, network, secrets } = own;
        let (image, network) = (image.as_ref(), network.as_ref());
        let is_for_one = network.is_some() || writable_bytes.is_some() || secrets.is_some();
        let Some(sandbox) = sandbox else { return Ok(&mut self.plain) };
        let failed = |source| ShimError::Start { program: sandbox.bubblewrap.program.clone(), source };
        let places = folder.writable().map_err(failed)?;
        let folders = std::iter::once(folder.root())
            .chain(places.iter().map(PathBuf::as_path))
            .map(|path| fs::symlink_metadata(path).map(|it| (it.dev(), it.ino())))
            .collect::<io::Result<Vec<_>>>()
            .map_err(failed)?;
        if let Some(mut inside) = self.inside.take() {
            inside.note_traces();
            let is_image =
                inside.image.as_ref().map(|image| &image.digest) == image.map(|image| &image.digest);
            let is_for_one = is_for_one || inside.is_for_one;
            let is_same =
                inside.folders == folders && Arc::ptr_eq(&inside.sandbox, sandbox) && is_image && !is_for_one;
            if is_same && !inside.shim.is_gone() {
                return Ok(&mut self.inside.insert(inside).shim);
            }
            inside.shim.end().await?;
        }
        let root = image.map(|image| ImageRoot { writable_bytes: *writable_bytes, ..image.root() });
        let user = self.users.of_build(image.map(Arc::as_ref));
        let parts = sandbox::OwnParts { user, image: root.as_ref(), network, secrets: secrets.as_ref() };
        let options = sandbox
            .options(folder.root(), &places, parts)
            .map_err(|error| failed(io::Error::other(error)))?;
        let options = Options { join: self.limits.join_files(), ..options };
        let shim = Shim::start_with(&self.program, &options).await?;
        Ok(&mut self
            .inside
            .insert(Inside {
                shim,
                sandbox: Arc::clone(sandbox),
                image: image.cloned(),
                is_for_one,
                folders,
                has_traces: false,
            })
            .shim)
    }

    /// Whether there is a sandbox that no other build may have.
    pub(crate) fn is_for_one(&self) -> bool {
        self.inside.as_ref().is_some_and(|inside| inside.is_for_one)
    }

    /// Ends the sandbox with all processes in it, if there is one.
    pub(crate) async fn leave_sandbox(&mut self) -> Result<(), ShimError> {
        match &mut self.inside {
            Some(inside) => inside.shim.end().await?,
            None => return Ok(()),
        }
        self.inside = None;
        Ok(())
    }

    /// Whether a command left processes alive, according to the last report.
    pub(crate) fn has_survivors(&self) -> bool {
        self.plain.has_survivors() || self.inside.as_ref().is_some_and(|inside| inside.shim.has_survivors())
    }

    /// Stops the processes that commands left (`true`) while the worker reads or changes files of the workspace, or lets them go
    /// on: they could replace a folder by a link that the worker follows.
    pub(crate) async fn hold(&mut self, hold: bool) -> Result<(), ShimError> {
        self.plain.hold(hold).await?;
        match &mut self.inside {
            Some(inside) => inside.shim.hold(hold).await,
            None => Ok(()),
        }
    }

    /// Ends the processes that commands left: SIGTERM to all, and SIGKILL after `grace`. A sandbox that may have other
    /// traces of builds, in `/tmp` or shared memory, ends with them. May be dropped and repeated.
    pub(crate) async fn forget(&mut self, grace: Duration) -> Result<(), ShimError> {
        self.plain.forget(grace).await?;
        if let Some(inside) = &mut self.inside {
            inside.note_traces();
            inside.shim.forget(grace).await?;
            inside.note_traces();
            if !inside.has_traces {
                return Ok(());
            }
            inside.shim.end().await?;
        }
        self.inside = None;
        Ok(())
    }

    /// Waits while no command runs; returns when the processes that commands left have ended on their own, and fails
    /// when a shim has ended. May be dropped at any time.
    pub(crate) async fn idle(&mut self) -> Result<(), ShimError> {
        match &mut self.inside {
            Some(inside) => {
                inside.note_traces();
                tokio::select! {
                    ended = self.plain.idle() => ended,
                    ended = inside.shim.idle() => ended,
                }
            }
            None => self.plain.idle().await,
        }
    }

    /// Ends all processes; returns when they are dead.
    pub(crate) async fn end(&mut self) -> Result<(), ShimError> {
        let inside = match &mut self.inside {
            Some(inside) => inside.shim.end().await,
            None => Ok(()),
        };
        self.plain.end().await.and(inside)
    }
}
