//! Databases and messages for the tests.

pub(crate) mod databases;
pub(crate) mod messages;
