//! The archive in SQL: SQLite by default, PostgreSQL when outgrown. Both have the same tables and statements, but for what
//! `sql::Dialect` names.
//!
//! Rows come from the messages of three streams ([`Batch`], pure) and are written with the position of the last message in
//! one transaction ([`Writer`]). A position is written once: what is delivered again changes nothing.

mod action_rows;
mod audit_rows;
mod batch;
mod build_rows;
mod console_rows;
mod error;
mod event_rows;
mod figures;
mod file_id;
mod grid;
mod lock;
mod migrations;
mod plain;
mod read;
mod readers;
mod retention;
mod rows;
mod size_limit;
mod sql;
mod sqlite;
mod statements;
mod store;
mod stream;
mod tool_rows;
mod unreadable;
mod writer;

pub use batch::Batch;
pub use error::StoreError;
pub use retention::Retention;
pub use sql::Dialect;
pub use store::Store;
pub use stream::LogStream;
pub use writer::{Cursor, Writer};
