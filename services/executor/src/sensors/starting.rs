//! How many actions fetch their inputs at once. No more are asked for than may, so this is red only while as many do.

use super::{Inside, Kind, Reading, Sensor};

pub(super) struct Starting(u16);

impl Starting {
    pub(super) fn new(most: u16) -> Self {
        Self(most)
    }
}

impl Sensor for Starting {
    fn name(&self) -> &'static str {
        "starting"
    }

    fn kind(&self) -> Kind {
        Kind::Limit
    }

    fn read(&mut self, inside: Inside) -> Reading {
        if inside.starting < self.0 {
            return Reading::green();
        }
        Reading::red(format!("{} actions fetch their inputs, and {} may", inside.starting, self.0))
    }
}
