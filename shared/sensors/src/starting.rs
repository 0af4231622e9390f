//! The number of actions that fetch their inputs. No more are requested than the limit allows, so this is red
//! only at the limit.

use crate::{Kind, Reading, Sensor, SensorInput};

pub(crate) struct Starting(u16);

impl Starting {
    pub(crate) fn new(most: u16) -> Self {
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

    fn read(&mut self, input: SensorInput) -> Reading {
        if input.starting < self.0 {
            return Reading::green();
        }
        Reading::red(format!("{} actions fetch their inputs, and the limit is {}", input.starting, self.0))
    }
}
