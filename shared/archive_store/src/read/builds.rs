//! Single builds, and what an id means.

use model::{ArchivedBuildRequest, BuildId, BuildKey, BuildRecord, BuildView, Sequence};

use super::query::Query;
use crate::{Store, StoreError, plain::natural, sql::AnswerRow};

/// Columns of a record, for [`view`].
pub(crate) const RECORD: &str = "r.position, r.record, r.packed, \
    (SELECT base FROM cursors WHERE stream = 'FOREBAY_EVENTS')";
/// Maximum size of a record in bytes: nats-server accepts no larger message.
const RECORD_BYTES_MAX: usize = 64 << 20;

impl Store {
    /// The build in its last archived state.
    pub async fn build(&self, key: &BuildKey) -> Result<Option<BuildView>, StoreError> {
        let mut query = Query::new("SELECT ");
        query.add(RECORD).add(" FROM builds b JOIN build_records r ON r.place = b.place WHERE b.build_id = ");
        query.bind(key.id.to_string()).and("b.build_group =", key.group.as_str());
        let rows = self.fetch(&query, "reading a build").await?;
        rows.first().map(|row| view(row, 0)).transpose()
    }

    /// The builds with this id, or the build of the invocation with this id.
    pub async fn find(&self, id: BuildId) -> Result<Vec<ArchivedBuildRequest>, StoreError> {
        let mut query = Query::new("SELECT build_group, build_id FROM builds WHERE build_id = ");
        query.bind(id.to_string()).add(" ORDER BY build_group");
        let mut connection = self.reader().await?;
        let mut rows = query.fetch(&mut connection, "finding an id").await?;
        if rows.is_empty() {
            let mut query = Query::new("SELECT b.build_group, b.build_id FROM invocations i ");
            query.add("JOIN builds b ON b.place = i.place WHERE i.invocation_id = ").bind(id.to_string());
            rows = query.fetch(&mut connection, "finding an invocation").await?;
        }
        let read = |row: &AnswerRow| {
            let failed = |error| StoreError::while_("reading an id")(error);
            let (group, id) = (row.word(0).map_err(failed)?, row.word(1).map_err(failed)?);
            Ok(ArchivedBuildRequest { group: parse(&group)?, id: parse(&id)? })
        };
        rows.iter().map(read).collect()
    }
}

/// A name or an id of the archive, as its type.
pub(crate) fn parse<T>(text: &str) -> Result<T, StoreError>
where
    T: std::str::FromStr,
    T::Err: std::error::Error + Send + Sync + 'static,
{
    text.parse().map_err(|error: T::Err| StoreError::Record(error.into()))
}

/// The view of a record, whose columns start at `first`.
pub(crate) fn view(row: &AnswerRow, first: usize) -> Result<BuildView, StoreError> {
    let failed = |error| StoreError::while_("reading a record")(error);
    let position = row.whole(first).map_err(failed)?;
    let base = row.integer(first + 3).map_err(failed)?.unwrap_or_default();
    let record = match (row.text(first + 1).map_err(failed)?, row.bytes(first + 2).map_err(failed)?) {
        (Some(text), _) => text.into_bytes(),
        (None, Some(packed)) => zstd::bulk::decompress(&packed, RECORD_BYTES_MAX)
            .map_err(|error| StoreError::Record(error.into()))?,
        (None, None) => return Err(StoreError::Record("the record is empty".into())),
    };
    let record: BuildRecord =
        bus::FromJson::from_json(&record).map_err(|error| StoreError::Record(Box::new(error)))?;
    Ok(BuildView::new(sequence(position, base), record))
}

/// The position in the stream; that of an earlier stream of this name stays as it was counted.
pub(crate) fn sequence(position: i64, base: i64) -> Sequence {
    Sequence(natural(if position > base { position - base } else { position }))
}
