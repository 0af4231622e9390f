//! How the database answers a list, to see that it reads no whole table.

use model::ArchivedBuildsRequest;

use super::{list::page_query, query::Query};
use crate::{Store, StoreError, sql::Dialect};

impl Store {
    /// The steps in which the database answers `request`; PostgreSQL's are those with indexes, however small the tables are.
    pub async fn plan(&self, request: &ArchivedBuildsRequest) -> Result<Vec<String>, StoreError> {
        let what = "explaining a list";
        let mut connection = self.reader().await?;
        let query = page_query(self.dialect(), request, &mut connection).await?;
        let (explain, column) = match self.dialect() {
            Dialect::Sqlite => ("EXPLAIN QUERY PLAN ", 3),
            Dialect::Postgres => ("EXPLAIN ", 0),
        };
        if self.dialect() == Dialect::Postgres {
            Query::new("SET enable_seqscan = off").fetch(&mut connection, what).await?;
        }
        let query = Query { sql: format!("{explain}{}", query.sql), values: query.values };
        let rows = query.fetch(&mut connection, what).await?;
        if self.dialect() == Dialect::Postgres {
            Query::new("SET enable_seqscan = on").fetch(&mut connection, what).await?;
        }
        rows.iter().map(|row| row.word(column)).collect::<Result<_, _>>().map_err(StoreError::while_(what))
    }
}
