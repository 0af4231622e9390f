//! A handle that controls a running command.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::error::ShimError;
use crate::frame::{self, Request};
use crate::link::Link;
use crate::model::{Deadline, Measured};

/// Renews, measures or kills one command. Calls after that command's end have no effect, except that the deadline of
/// its survivors can be renewed.
#[derive(Debug, Clone)]
pub struct Control {
    pub(crate) link: Arc<Link>,
    /// Number of the command.
    pub(crate) run: u64,
    pub(crate) measured: watch::Receiver<(u64, Measured)>,
}

impl Control {
    /// Requests a measurement of the command's usage. [`Control::measured`] returns it once the answer has arrived,
    /// which requires that [`Running::next_event`](crate::Running::next_event) is being called.
    pub async fn measure(&self) -> Result<(), ShimError> {
        self.link.send(|out| frame::put_request(out, &Request::Measure { run: self.run })).await
    }

    /// The latest measurement, if there is one.
    pub fn measured(&self) -> Option<Measured> {
        let (run, measured) = *self.measured.borrow();
        (run == self.run).then_some(measured)
    }

    /// Moves the command's deadline to this moment.
    pub async fn renew(&self, deadline: Deadline) -> Result<(), ShimError> {
        self.link.send(|out| frame::put_request(out, &Request::Renew { run: self.run, deadline })).await
    }

    /// Ends the command: SIGTERM to its process group, and SIGKILL to all its processes after `grace`; at once if
    /// `grace` is zero. Returns when the request is sent; [`Event::Exited`](crate::Event::Exited) reports the end.
    pub async fn kill(&self, grace: Duration) -> Result<(), ShimError> {
        self.link.send(|out| frame::put_request(out, &Request::Kill { run: self.run, grace })).await
    }
}
