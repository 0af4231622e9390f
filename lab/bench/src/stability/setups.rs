//! Runs a program under one of the set-ups that are compared.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use images::Image;
use sandbox::{Cgroups, Outcome, Parent, Run, Sandbox, Slot};

use super::workloads::{Workload, install};
use crate::{error::BenchError, slots};

/// How a program is isolated from the machine and from others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Setup {
    /// By its user alone.
    None,
    /// In a sandbox that is kept for many commands: the default of executors.
    Kept,
    /// In a sandbox that is made for each command.
    Alone,
    /// In a kept sandbox, with a control group.
    Group,
    /// In a kept sandbox with the files of an image.
    Image,
    /// The same with a control group.
    ImageGroup,
    /// In a kept sandbox, on one processor of its own.
    Pinned,
}

impl Setup {
    pub(super) const ALL: [Self; 7] =
        [Self::None, Self::Kept, Self::Alone, Self::Group, Self::Image, Self::ImageGroup, Self::Pinned];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Kept => "kept sandbox",
            Self::Alone => "sandbox per command",
            Self::Group => "kept, control group",
            Self::Image => "image",
            Self::ImageGroup => "image, control group",
            Self::Pinned => "kept, pinned",
        }
    }

    fn has_image(self) -> bool {
        matches!(self, Self::Image | Self::ImageGroup)
    }

    fn has_group(self) -> bool {
        matches!(self, Self::Group | Self::ImageGroup)
    }

    /// Whether a program can run under it.
    pub(super) fn runs(self, workload: &Workload, has_image: bool) -> bool {
        !self.has_image() || (has_image && !workload.is_python)
    }
}

/// The times of one run in microseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    pub(super) cpu: f64,
    pub(super) wall: f64,
}

/// A slot for one set-up, on one processor if the set-up says so.
pub(super) struct Measured {
    slot: Slot,
    setup: Setup,
    processor: usize,
    folder: PathBuf,
    image: Option<Arc<Image>>,
}

#[expect(clippy::needless_pass_by_value, reason = "it is passed to map_err")]
fn failed(error: sandbox::SandboxError) -> BenchError {
    BenchError::new("running a workload", &error)
}

impl Measured {
    /// Starts a slot with this number in `folder`.
    pub(super) async fn start(
        setup: Setup,
        number: usize,
        folder: &Path,
        image: Option<&Arc<Image>>,
    ) -> Result<Self, BenchError> {
        let folder = folder.join(format!("{setup:?}-{number}"));
        let name = format!("stability-{}-{setup:?}-{number}", std::process::id());
        let sandbox = if setup == Setup::None { Sandbox::None } else { Sandbox::Bubblewrap };
        let cgroups =
            if setup.has_group() { Cgroups::detect(&Parent::default()) } else { Cgroups::default() };
        let config = slots::config(name, &folder, sandbox, cgroups)?;
        let slot = Slot::start(config).await.map_err(failed)?;
        install(&folder.join("work/root"))?;
        let image = image.filter(|_| setup.has_image()).cloned();
        Ok(Self { slot, setup, processor: number, folder, image })
    }

    /// Runs a program once.
    pub(super) async fn run(&mut self, workload: &Workload) -> Result<Times, BenchError> {
        let mut argv = workload.command();
        if self.setup == Setup::Pinned {
            let pin = ["taskset".to_owned(), "-c".to_owned(), self.processor.to_string()];
            argv = pin.into_iter().chain(argv).collect();
        }
        let run = Run {
            image: self.image.as_ref().map(Image::root),
            // Such a command has a sandbox of its own.
            shares_network: self.setup == Setup::Alone,
            ..slots::run(argv, &self.folder)
        };
        match self.slot.run(run).await.map_err(failed)?.finish().await.map_err(failed)? {
            Outcome::Ended(ended) if ended.exit_code == 0 => {
                let micros = |time: Duration| time.as_secs_f64() * 1e6;
                Ok(Times { cpu: micros(ended.cpu), wall: micros(ended.wall) })
            }
            other @ (Outcome::Ended(_) | Outcome::NotStarted { .. }) => {
                Err(BenchError::plain(format!("{} ended with {other:?}", workload.name)))
            }
        }
    }

    pub(super) async fn stop(self) -> Result<(), BenchError> {
        self.slot.stop().await.map_err(failed)
    }
}
