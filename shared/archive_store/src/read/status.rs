//! How far the archive has read, and what it lacks.

use std::collections::BTreeMap;

use model::{ArchiveGap, ArchiveStatus, ArchivedStream, Millis, SetAsideMessage};

use super::{builds::sequence, query::Query};
use crate::{Store, StoreError, plain::natural};

impl Store {
    /// The state of the archive.
    pub async fn status(&self) -> Result<ArchiveStatus, StoreError> {
        let failed = |error| StoreError::while_("reading the state of the archive")(error);
        let mut connection = self.reader().await?;
        let what = "reading the state of the archive";
        let cursors = Query::new("SELECT stream, position, base, at_ms FROM cursors");
        let mut status = ArchiveStatus { streams: BTreeMap::new(), gaps: Vec::new(), set_aside: Vec::new() };
        for row in cursors.fetch(&mut connection, what).await? {
            let position = row.whole(1).map_err(failed)?.saturating_sub(row.whole(2).map_err(failed)?);
            let at_ms = Millis(natural(row.whole(3).map_err(failed)?));
            let stream = ArchivedStream { position: sequence(position, 0), at_ms };
            status.streams.insert(row.word(0).map_err(failed)?, stream);
        }
        let gaps =
            Query::new("SELECT stream, first_position, last_position FROM gaps ORDER BY 1, 2 LIMIT 100");
        for row in gaps.fetch(&mut connection, what).await? {
            let (first, last) = (row.whole(1).map_err(failed)?, row.whole(2).map_err(failed)?);
            let (first, last) = (sequence(first, 0), sequence(last, 0));
            status.gaps.push(ArchiveGap { stream: row.word(0).map_err(failed)?, first, last });
        }
        let aside = "SELECT stream, position, subject, reason FROM set_aside ORDER BY stream DESC, position DESC LIMIT 100";
        for row in Query::new(aside).fetch(&mut connection, what).await? {
            status.set_aside.push(SetAsideMessage {
                stream: row.word(0).map_err(failed)?,
                position: sequence(row.whole(1).map_err(failed)?, 0),
                subject: row.word(2).map_err(failed)?,
                reason: row.word(3).map_err(failed)?,
            });
        }
        Ok(status)
    }
}
