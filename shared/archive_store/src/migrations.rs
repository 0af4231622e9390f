//! The tables of each database, and their changes from version to version.

use sqlx::{
    SqlSafeStr as _,
    migrate::{Migration, MigrationType, Migrator},
};

use crate::sql::Dialect;

const SQLITE: &[&str] = &[
    include_str!("../migrations/sqlite/1_first.sql"),
    include_str!("../migrations/sqlite/2_tool_invocations.sql"),
    include_str!("../migrations/sqlite/3_report.sql"),
    include_str!("../migrations/sqlite/4_console_pieces.sql"),
    include_str!("../migrations/sqlite/5_groups_of_actions.sql"),
    include_str!("../migrations/sqlite/6_set_aside_by_age.sql"),
    include_str!("../migrations/sqlite/7_audit.sql"),
];
const POSTGRES: &[&str] = &[
    include_str!("../migrations/postgres/1_first.sql"),
    include_str!("../migrations/postgres/2_tool_invocations.sql"),
    include_str!("../migrations/postgres/3_report.sql"),
    include_str!("../migrations/postgres/4_console_pieces.sql"),
    include_str!("../migrations/postgres/5_groups_of_actions.sql"),
    include_str!("../migrations/postgres/6_set_aside_by_age.sql"),
    include_str!("../migrations/postgres/7_audit.sql"),
];

/// Version of the tables: the number of the last migration, which both databases have.
#[expect(clippy::cast_possible_wrap, reason = "there are only a few")]
pub(crate) const VERSION: i64 = SQLITE.len() as i64;
const _: () = assert!(SQLITE.len() == POSTGRES.len());

/// All migrations of a database, which never change after a release.
pub(crate) fn migrator(dialect: Dialect) -> Migrator {
    let all = match dialect {
        Dialect::Sqlite => SQLITE,
        Dialect::Postgres => POSTGRES,
    };
    let migration = |(number, sql): (i64, &&'static str)| {
        Migration::new(number, "archive".into(), MigrationType::Simple, (*sql).into_sql_str(), false)
    };
    Migrator::with_migrations((1..).zip(all).map(migration).collect())
}
