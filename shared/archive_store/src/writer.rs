//! Writing: a batch and the cursor in one transaction.

use std::{collections::BTreeSet, path::PathBuf, sync::Arc};

use model::{Millis, Sequence};
use serde::Serialize;

use crate::{
    Store, StoreError,
    batch::Batch,
    file_id::FileId,
    lock::Locked,
    migrations::migrator,
    plain::{natural, whole},
    sql::{Connection, Dialect, Sql, Value},
    statements::Statements,
    store::Target,
    stream::LogStream,
};

/// The only process that writes to an archive.
pub struct Writer {
    pub(crate) connection: Connection,
    pub(crate) dialect: Dialect,
    _locked: Option<Box<dyn Send + Sync>>,
    /// The file of a SQLite database as it was opened.
    opened: Option<(Arc<PathBuf>, Option<FileId>)>,
    statements: Statements,
}

/// Up to where a stream is archived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cursor {
    /// What is added to positions of the stream: a stream that was created again starts at 1.
    pub base: i64,
    /// Position of the last archived message, counted from the base.
    pub position: i64,
}

impl Cursor {
    /// Position in the stream of the last archived message; 0 before the first.
    pub fn sequence(self) -> Sequence {
        Sequence(natural(self.position - self.base))
    }
}

impl Store {
    /// Waits until no other process writes, creates the tables if they are missing, and becomes the writer.
    pub async fn writer(&self) -> Result<Writer, StoreError> {
        let Locked { mut connection, file } = self.lock().await?;
        let migrations = migrator(self.dialect());
        // `run` asks for a connection of any lifetime, which a future that is sent between threads cannot give.
        match &mut connection {
            Connection::Sqlite(connection) => migrations.run_direct(None, connection, false).await?,
            Connection::Postgres(connection) => migrations.run_direct(None, connection, false).await?,
            Connection::SqliteReader(_) | Connection::PostgresReader(_) => {}
        }
        let dialect = self.dialect();
        let locked = file.map(|file| Box::new(file) as _);
        let opened = match &self.target {
            Target::Sqlite(path) => Some((path.clone(), FileId::of(path))),
            Target::Postgres(_) => None,
        };
        Ok(Writer { connection, dialect, _locked: locked, opened, statements: Statements::new(dialect) })
    }
}

impl Writer {
    /// Up to where `stream` is archived; `created` is the time of its creation, by which a stream is recognised that was
    /// deleted and created again.
    pub async fn cursor(&mut self, stream: LogStream, created: Millis) -> Result<Cursor, StoreError> {
        let failed = |error| StoreError::while_("reading the cursor")(error);
        let (name, created) = (Value::from(stream.name()), Value::Integer(whole(created.0)));
        self.connection
            .execute(&self.statements.add_cursor, &[name.clone(), created.clone()])
            .await
            .map_err(failed)?;
        let known = self
            .connection
            .fetch(&self.statements.cursor, std::slice::from_ref(&name))
            .await
            .map_err(failed)?;
        let row = known.first().ok_or_else(|| failed(sqlx::Error::RowNotFound))?;
        let read = |column| row.whole(column).map_err(failed);
        let (known_created, base, position) = (read(0)?, read(1)?, read(2)?);
        if matches!(created, Value::Integer(created) if created == known_created) {
            return Ok(Cursor { base, position });
        }
        self.connection.execute(&self.statements.rebase, &[name, created]).await.map_err(failed)?;
        Ok(Cursor { base: position, position })
    }

    /// Records that the messages `first` to `last` of the stream were gone before they could be archived.
    pub async fn record_gap(&mut self, stream: LogStream, first: i64, last: i64) -> Result<(), StoreError> {
        let values = [stream.name().into(), first.into(), last.into()];
        let written = self.connection.execute(&self.statements.gap, &values).await;
        written.map(drop).map_err(StoreError::while_("recording a gap"))
    }

    /// Writes a batch that follows `cursor`, and returns the new cursor. On an error nothing of it is written.
    pub async fn commit(&mut self, batch: &Batch, cursor: Cursor) -> Result<Cursor, StoreError> {
        let Some((position, at)) = batch.last else { return Ok(cursor) };
        self.check_file()?;
        self.transaction("writing a batch", async |writer| {
            writer.write(batch).await.map_err(StoreError::while_("writing a batch"))?;
            writer.advance(batch.stream, cursor, (position, at)).await
        })
        .await?;
        Ok(Cursor { position, ..cursor })
    }

    /// Writes one page, to see whether the database takes transactions.
    pub async fn check_writing(&mut self) -> Result<(), StoreError> {
        let what = "checking that it can be written";
        self.transaction(what, async |writer| {
            let sql = "UPDATE cursors SET at_ms = at_ms".into();
            writer.run(&sql, &[]).await.map(drop).map_err(StoreError::while_(what))
        })
        .await
    }

    /// Fails if the database is not the one any more that was opened.
    pub(crate) fn check_file(&self) -> Result<(), StoreError> {
        match &self.opened {
            Some((path, opened)) if FileId::of(path) != *opened => {
                Err(StoreError::Replaced { path: path.display().to_string() })
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Runs `work` in a transaction.
    pub(crate) async fn transaction<T>(
        &mut self,
        what: &'static str,
        work: impl AsyncFnOnce(&mut Self) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let begin = self.statements.begin.clone();
        self.run(&begin, &[]).await.map_err(StoreError::while_(what))?;
        let (end, done) = match work(self).await {
            Ok(done) => (self.statements.commit.clone(), Ok(done)),
            Err(error) => (self.statements.rollback.clone(), Err(error)),
        };
        let ended = self.run(&end, &[]).await;
        // A failed rollback ends with the connection, and the transaction too: the first error says why.
        let done = done?;
        ended.map(|_| done).map_err(StoreError::while_(what))
    }

    /// Moves the cursor, unless another process has moved it: then nothing is committed.
    async fn advance(
        &mut self,
        stream: LogStream,
        from: Cursor,
        (position, at): (i64, Millis),
    ) -> Result<(), StoreError> {
        let values = [stream.name().into(), position.into(), whole(at.0).into(), from.position.into()];
        let moved = self.connection.execute(&self.statements.advance, &values).await;
        match moved.map_err(StoreError::while_("moving the cursor"))? {
            1 => Ok(()),
            _ => Err(StoreError::Overtaken { stream: stream.name(), expected: from.position }),
        }
    }

    async fn write(&mut self, batch: &Batch) -> Result<(), sqlx::Error> {
        let stale = self.replace_builds(batch).await?;
        let Batch {
            builds,
            invocations,
            prepared,
            consoles,
            pieces,
            tasks,
            actions,
            tools,
            audit,
            set_aside,
            ..
        } = batch;
        let statements = &self.statements;
        let to = &mut self.connection;
        let builds: Vec<_> = builds.values().filter(|rows| !stale.contains(&rows.build.place)).collect();
        let invocations = invocations.values().filter(|row| !stale.contains(&row.place));
        let rows: Vec<_> = builds.iter().map(|rows| &rows.build).collect();
        if rows.iter().any(|row| row.outcome.is_some()) {
            put(to, &statements.sums, rows.iter()).await?;
        }
        put(to, &statements.builds, rows.iter()).await?;
        put(to, &statements.records, builds.iter().map(|rows| &rows.record)).await?;
        if let Some(search) = &statements.search {
            put(to, search, builds.iter().map(|rows| &rows.text)).await?;
        }
        put(to, &statements.texts, builds.iter().map(|rows| &rows.text)).await?;
        put(to, &statements.properties, builds.iter().flat_map(|rows| &rows.properties)).await?;
        put(to, &statements.outputs, builds.iter().flat_map(|rows| &rows.outputs)).await?;
        put(to, &statements.invocations, invocations).await?;
        put(to, &statements.prepared, prepared.iter()).await?;
        put(to, &statements.consoles, consoles.values()).await?;
        put(to, &statements.pieces, pieces.iter()).await?;
        put(to, &statements.tasks, tasks.values()).await?;
        put(to, &statements.actions, actions.values()).await?;
        put(to, &statements.tool_invocations, tools.invocations.values()).await?;
        put(to, &statements.targets, tools.targets.values()).await?;
        put(to, &statements.tests, tools.tests.values()).await?;
        put(to, &statements.audit, audit.iter()).await?;
        put(to, &statements.set_aside, set_aside.iter()).await
    }

    /// Removes builds whose ids the batch has for newer builds: an id may be published again once the bus has forgotten the
    /// first build. Returns the places of builds in the batch that are older than those that are known, which are
    /// stale: they are not written.
    async fn replace_builds(&mut self, batch: &Batch) -> Result<BTreeSet<i64>, sqlx::Error> {
        let builds = batch.builds.values().map(|rows| &rows.build).chain(&batch.superseded);
        let keys: Vec<_> =
            builds.map(|row| (row.build_group.as_str(), row.build_id.as_str(), row.place)).collect();
        let (mut stale, mut replaced) = (BTreeSet::new(), Vec::new());
        if keys.is_empty() {
            return Ok(stale);
        }
        let keys = [json(&keys)?];
        for row in self.connection.fetch(&self.statements.other_places, &keys).await? {
            let (place, known) = (row.whole(0)?, row.whole(1)?);
            if known > place {
                stale.insert(place);
            } else {
                replaced.push(known);
            }
        }
        let ended = batch.superseded.iter().filter(|row| !stale.contains(&row.place));
        put(&mut self.connection, &self.statements.sums, ended).await?;
        self.remove_builds(&replaced).await?;
        Ok(stale)
    }

    pub(crate) async fn run(&mut self, sql: &Sql, values: &[Value]) -> Result<u64, sqlx::Error> {
        self.connection.execute(sql, values).await
    }

    /// Gives up the right to write.
    pub async fn close(self) -> Result<(), StoreError> {
        self.connection.close().await.map_err(StoreError::while_("closing"))
    }
}

/// Binds all rows as one JSON array.
async fn put<R: Serialize>(
    to: &mut Connection,
    sql: &Sql,
    rows: impl Iterator<Item = R>,
) -> Result<(), sqlx::Error> {
    let rows: Vec<R> = rows.collect();
    if rows.is_empty() {
        return Ok(());
    }
    to.execute(sql, &[json(&rows)?]).await.map(drop)
}

fn json(rows: &impl Serialize) -> Result<Value, sqlx::Error> {
    serde_json::to_string(rows).map(Value::Text).map_err(|error| sqlx::Error::Encode(Box::new(error)))
}
