//! A real Chromium for tests of the pages: started by each test, driven over its `WebDriver` protocol.
#![expect(clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod browser;
mod driver;
mod webdriver;

pub use browser::{Browser, Look};
pub use webdriver::{DriverError, Element};
