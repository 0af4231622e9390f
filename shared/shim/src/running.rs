//! A running command, from the worker's side.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::client::{Shim, ShimError};
use crate::frame;
use crate::link::Link;
use crate::model::{Deadline, Event, Measured};

/// A running command. Dropping it before its end kills the command.
#[derive(Debug)]
pub struct Running<'shim> {
    pub(crate) shim: &'shim mut Shim,
}

impl Running<'_> {
    /// The next event; `None` after [`Event::Exited`] or [`Event::SpawnFailed`]. May be dropped and called
    /// again without losing events.
    pub async fn next_event(&mut self) -> Result<Option<Event>, ShimError> {
        if self.shim.unfinished { self.shim.next_event().await.map(Some) } else { Ok(None) }
    }

    /// Ends the shim and returns when all its processes are dead, as [`Shim::end`] does.
    pub async fn end_shim(&mut self) -> Result<(), ShimError> {
        self.shim.end().await
    }

    /// Same as [`Shim::own_cpu`], during a command.
    pub fn own_cpu(&self) -> Option<Duration> {
        self.shim.own_cpu()
    }

    /// Same as [`Shim::has_survivors`], during a command.
    pub fn has_survivors(&self) -> bool {
        self.shim.has_survivors()
    }

    /// A handle that other tasks can use to renew, measure or kill this command, and no other.
    pub fn control(&self) -> Control {
        let measured = self.shim.measured.subscribe();
        Control { link: Arc::clone(&self.shim.link), run: self.shim.run, measured }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if self.shim.unfinished {
            let run = self.shim.run;
            // If the socket is full, the next `run` sends the rest; if it is broken, all processes are dead.
            let _ = self.shim.link.push(|out| frame::put_kill(out, run, Duration::ZERO));
        }
    }
}

/// Renews, measures or kills one command. Calls after that command's end have no effect, except that the deadline of
/// its survivors can be renewed.
#[derive(Debug, Clone)]
pub struct Control {
    link: Arc<Link>,
    run: u64,
    measured: watch::Receiver<(u64, Measured)>,
}

impl Control {
    /// Requests a measurement of the command's usage. [`Control::measured`] returns it once the answer has arrived,
    /// which requires that [`Running::next_event`] is being called.
    pub async fn measure(&self) -> Result<(), ShimError> {
        self.link.send(|out| frame::put_measure(out, self.run)).await
    }

    /// The latest measurement, if there is one.
    pub fn measured(&self) -> Option<Measured> {
        let (run, measured) = *self.measured.borrow();
        (run == self.run).then_some(measured)
    }

    /// Moves the command's deadline to this moment.
    pub async fn renew(&self, deadline: Deadline) -> Result<(), ShimError> {
        self.link.send(|out| frame::put_renew(out, self.run, deadline)).await
    }

    /// Ends the command: SIGTERM to its process group, and SIGKILL to all its processes after `grace`; at once if
    /// `grace` is zero. Returns when the request is sent; [`Event::Exited`] reports the end.
    pub async fn kill(&self, grace: Duration) -> Result<(), ShimError> {
        self.link.send(|out| frame::put_kill(out, self.run, grace)).await
    }
}
