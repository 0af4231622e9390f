//! A command under way, as the worker sees it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::client::{Shim, ShimError};
use crate::frame;
use crate::link::Link;
use crate::model::{Deadline, Event, Measured};

/// A command on its way. Dropping it before its end kills the command.
#[derive(Debug)]
pub struct Running<'shim> {
    pub(crate) shim: &'shim mut Shim,
}

impl Running<'_> {
    /// What happens next; `None` after [`Event::Exited`] or [`Event::SpawnFailed`]. May be dropped and called
    /// again without losing anything.
    pub async fn next_event(&mut self) -> Result<Option<Event>, ShimError> {
        if self.shim.unfinished { self.shim.next_event().await.map(Some) } else { Ok(None) }
    }

    /// Ends the shim and returns when all its processes are dead, as [`Shim::end`] does.
    pub async fn end_shim(&mut self) -> Result<(), ShimError> {
        self.shim.end().await
    }

    /// Like [`Shim::own_cpu`].
    pub fn own_cpu(&self) -> Option<Duration> {
        self.shim.own_cpu()
    }

    /// Like [`Shim::has_survivors`].
    pub fn has_survivors(&self) -> bool {
        self.shim.has_survivors()
    }

    /// A handle to renew, measure or kill this command, and no other, from elsewhere.
    pub fn control(&self) -> Control {
        let measured = self.shim.measured.subscribe();
        Control { link: Arc::clone(&self.shim.link), run: self.shim.run, measured }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if self.shim.unfinished {
            let run = self.shim.run;
            // If the socket takes no more just now, the next `run` sends the rest; if it is broken, all is dead.
            let _ = self.shim.link.push(|out| frame::put_kill(out, run, Duration::ZERO));
        }
    }
}

/// Renews, measures or kills one command. What comes after that command's end has no effect, but for the deadline of
/// what it left.
#[derive(Debug, Clone)]
pub struct Control {
    link: Arc<Link>,
    run: u64,
    measured: watch::Receiver<(u64, Measured)>,
}

impl Control {
    /// Asks how much the command has used. [`Control::measured`] tells once the answer is there, which takes that
    /// [`Running::next_event`] is being called.
    pub async fn measure(&self) -> Result<(), ShimError> {
        self.link.send(|out| frame::put_measure(out, self.run)).await
    }

    /// The latest answer, if there is one.
    pub fn measured(&self) -> Option<Measured> {
        let (run, measured) = *self.measured.borrow();
        (run == self.run).then_some(measured)
    }

    /// Moves the command's deadline to this moment.
    pub async fn renew(&self, deadline: Deadline) -> Result<(), ShimError> {
        self.link.send(|out| frame::put_renew(out, self.run, deadline)).await
    }

    /// Ends the command: SIGTERM to its process group, and SIGKILL to all its processes `grace` later; at once
    /// if `grace` is zero. Returns when the word is sent; the end is told by [`Event::Exited`].
    pub async fn kill(&self, grace: Duration) -> Result<(), ShimError> {
        self.link.send(|out| frame::put_kill(out, self.run, grace)).await
    }
}
