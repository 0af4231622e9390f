//! The content of each table as a hash, to compare archives.

use std::collections::BTreeMap;

use sha2::{Digest as _, Sha256};

use super::query::Query;
use crate::{Store, StoreError, sql::Dialect};

/// Tables whose content follows from the messages, with the columns that give their rows an order.
const TABLES: [(&str, &str); 15] = [
    ("builds", "place"),
    ("build_records", "place"),
    ("build_texts", "place"),
    ("build_properties", "kind, name, value, place"),
    ("outputs", "place, number"),
    ("invocations", "place, attempt"),
    ("consoles", "place, attempt, output"),
    ("console_pieces", "position"),
    ("tasks", "place, attempt, task"),
    ("actions", "place"),
    ("day_sums", "day, build_group, priority, outcome"),
    ("tool_invocations", "call"),
    ("targets", "call, label, aspect"),
    ("tests", "call, label, run, shard, attempt, configuration"),
    ("set_aside", "stream, position"),
];

impl Store {
    /// A hash of the rows of each table, in order. Reads all rows: for tests, and to compare an archive with a rebuilt one.
    pub async fn content_hashes(&self) -> Result<BTreeMap<&'static str, String>, StoreError> {
        let mut connection = self.reader().await?;
        let mut hashes = BTreeMap::new();
        for (table, order) in TABLES {
            let what = "reading all rows";
            let columns = match self.dialect() {
                Dialect::Sqlite => {
                    "SELECT group_concat('quote(' || name || ')', ' || char(10) || ') FROM pragma_table_info($1)"
                }
                Dialect::Postgres => {
                    "SELECT 'CAST(ROW(' || string_agg(quote_ident(column_name), ', ' ORDER BY ordinal_position) \
                    || ') AS TEXT)' FROM information_schema.columns WHERE table_schema = current_schema() AND table_name = $1"
                }
            };
            let found =
                connection.fetch(&columns.into(), &[table.into()]).await.map_err(StoreError::while_(what))?;
            let failed = |error| StoreError::while_(what)(error);
            let columns =
                found.first().map(|row| row.word(0)).transpose().map_err(failed)?.unwrap_or_default();
            let query =
                Query { sql: format!("SELECT {columns} FROM {table} ORDER BY {order}"), values: Vec::new() };
            let mut hash = Sha256::new();
            for row in query.fetch(&mut connection, what).await? {
                hash.update(row.word(0).map_err(failed)?);
                hash.update(b"\n");
            }
            hashes.insert(table, model::hex(&hash.finalize()));
        }
        Ok(hashes)
    }
}
