//! Generated configurations on a real nats-server and a real Redis: each attack of the table in `docs/security.md` fails,
//! and each user can do what it needs.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]

mod attacks_inside;
mod attacks_of_tenants;
mod documents;
mod files;
mod jwts;
mod properties;
mod redis;
mod reloads;
mod rights;
mod roles;
mod signing_keys;
mod support;
