//! A statement that is put together from fixed parts, and its values.

use crate::{
    Store, StoreError,
    sql::{AnswerRow, Connection, Value},
};

/// A statement in parts. Data is never part of its text.
#[derive(Debug, Clone, Default)]
pub(crate) struct Query {
    pub(crate) sql: String,
    pub(crate) values: Vec<Value>,
}

impl Query {
    pub(crate) fn new(sql: &'static str) -> Self {
        Self { sql: sql.to_owned(), values: Vec::new() }
    }

    pub(crate) fn add(&mut self, part: &'static str) -> &mut Self {
        self.sql.push_str(part);
        self
    }

    /// Adds the parameter for `value`.
    pub(crate) fn bind(&mut self, value: impl Into<Value>) -> &mut Self {
        self.values.push(value.into());
        self.sql.push('$');
        self.sql.push_str(&self.values.len().to_string());
        self
    }

    /// Adds a condition `AND <condition> value`.
    pub(crate) fn and(&mut self, condition: &'static str, value: impl Into<Value>) -> &mut Self {
        self.add(" AND ").add(condition).add(" ").bind(value)
    }

    /// Adds a condition if there is a value for it.
    pub(crate) fn and_if<V: Into<Value>>(&mut self, condition: &'static str, value: Option<V>) -> &mut Self {
        match value {
            Some(value) => self.and(condition, value),
            None => self,
        }
    }

    pub(crate) async fn fetch(
        &self,
        from: &mut Connection,
        what: &'static str,
    ) -> Result<Vec<AnswerRow>, StoreError> {
        from.fetch(&self.sql.as_str().into(), &self.values).await.map_err(StoreError::while_(what))
    }
}

impl Store {
    /// The rows of a single statement.
    pub(crate) async fn fetch(
        &self,
        query: &Query,
        what: &'static str,
    ) -> Result<Vec<AnswerRow>, StoreError> {
        query.fetch(&mut self.reader().await?, what).await
    }
}
