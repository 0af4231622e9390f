//! The right to write: one process at a time has it, and loses it when it ends, however it ends.

use std::{fs::File, path::Path};

use nix::fcntl::Flock;

use crate::{
    Store, StoreError,
    sql::{Connection, Value},
    store::Target,
};

/// Key of the advisory lock in PostgreSQL: "forebay" in ASCII.
const LOCK_KEY: i64 = 0x0066_6f72_6562_6179;

/// A connection with the right to write.
pub(crate) struct Locked {
    pub(crate) connection: Connection,
    /// The kernel releases its lock when the process ends. In PostgreSQL, the session has the lock.
    pub(crate) file: Option<Flock<File>>,
}

impl Store {
    /// Waits until no other process has the right to write, and connects.
    pub(crate) async fn lock(&self) -> Result<Locked, StoreError> {
        let file = match &self.target {
            Target::Sqlite(path) => Some(lock_file(path).await?),
            Target::Postgres(_) => None,
        };
        let mut connection = self.writer_connection().await?;
        if file.is_none() {
            let locked =
                connection.execute(&"SELECT pg_advisory_lock($1)".into(), &[Value::Integer(LOCK_KEY)]).await;
            locked.map_err(StoreError::while_("waiting for the right to write"))?;
        }
        Ok(Locked { connection, file })
    }
}

/// The lock file of the database, locked.
async fn lock_file(database: &Path) -> Result<Flock<File>, StoreError> {
    let path = database.with_extension("writer");
    let failed = |source: std::io::Error| StoreError::File { path: path.display().to_string(), source };
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(failed)?;
    }
    disk::wait_for_lock(&path).await.map_err(failed)
}
