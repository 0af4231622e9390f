//! The number of actions that fetch their inputs. No more are requested than the limit allows, so this is red
//! only at the limit.

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
        Reading::red(format!("{} actions fetch their inputs, and the limit is {}", inside.starting, self.0))
    }
}
