//! Searches for builds by a text.
//!
//! Indexes have sequences of three characters, so that they give places that may contain the text; the text itself is checked
//! on these. Which sequences are rare is estimated from samples of texts.

use super::{
    query::Query,
    trigrams::{self, Parts},
};
use crate::{
    StoreError,
    plain::clean,
    sql::{Connection, Dialect},
};

/// Maximum length in characters of a text to search for.
const TEXT_MAX: usize = 200;
/// Number of texts that show which parts of a text are rare.
const SAMPLES: i64 = 200;
/// Number of samples with all rare parts of a text above which PostgreSQL reads the newest builds and not its index: an index
/// of that database gives all places at once, in any order.
const RARE_SAMPLES: usize = 2;

/// The places of builds that may contain a text.
pub(crate) async fn places(
    dialect: Dialect,
    text: &str,
    connection: &mut Connection,
) -> Result<Query, StoreError> {
    let text = lower(text);
    let length = text.chars().count();
    if !(trigrams::LENGTH..=TEXT_MAX).contains(&length) {
        let wanted = format!("expected {} to {TEXT_MAX}", trigrams::LENGTH);
        return Err(StoreError::Request(format!("invalid field text of {length} characters: {wanted}")));
    }
    let samples = samples(dialect, connection).await?;
    Ok(match dialect {
        Dialect::Sqlite => {
            let mut query = Query::new("SELECT rowid AS place FROM build_search WHERE build_search MATCH ");
            query.bind(Parts::of(&text, &samples).quoted());
            query
        }
        Dialect::Postgres => {
            let parts = Parts::of_words(&text, &samples);
            let mut query = Query::new("SELECT place FROM build_texts WHERE 1 = 1");
            if !parts.is_empty() && parts.samples_with_all(&samples) <= RARE_SAMPLES {
                // The whole text is no condition of the index, which would look up its common parts, too.
                query =
                    Query::new("SELECT place FROM (SELECT place, search_text FROM build_texts WHERE 1 = 1");
                for part in parts.all() {
                    query.and("search_text LIKE", format!("%{part}%"));
                }
                query.add(" OFFSET 0) t WHERE strpos(search_text, ").bind(text).add(") > 0");
            }
            query
        }
    })
}

/// Adds the condition that the build at place `s.place` contains the text.
pub(crate) fn check(dialect: Dialect, text: &str, query: &mut Query) {
    let find = match dialect {
        Dialect::Sqlite => " AND instr(",
        Dialect::Postgres => " AND strpos(",
    };
    query.add(find).add("(SELECT search_text FROM build_texts t WHERE t.place = s.place), ");
    query.bind(lower(text)).add(") > 0");
}

/// A text as those of builds are stored.
fn lower(text: &str) -> String {
    clean(&text.to_lowercase(), usize::MAX)
}

/// Some texts of builds, spread over the archive.
async fn samples(dialect: Dialect, connection: &mut Connection) -> Result<Vec<String>, StoreError> {
    let what = "reading samples of texts";
    let ends =
        Query::new("SELECT (SELECT MIN(place) FROM build_texts), (SELECT MAX(place) FROM build_texts)");
    let ends = ends.fetch(connection, what).await?;
    let Some(row) = ends.first() else { return Ok(Vec::new()) };
    let end = |column| row.integer(column).map_err(StoreError::while_(what));
    let (Some(first), Some(last)) = (end(0)?, end(1)?) else { return Ok(Vec::new()) };
    let step = last.saturating_sub(first) / SAMPLES;
    let places: Vec<String> = (0..SAMPLES).map(|number| (first + number * step).to_string()).collect();
    let mut query = Query::new("SELECT (SELECT search_text FROM build_texts WHERE place >= ");
    query.add("CAST(e.value AS BIGINT) ORDER BY place LIMIT 1) FROM ").add(dialect.list());
    query.values.push(format!("[{}]", places.join(",")).into());
    let rows = query.fetch(connection, what).await?;
    // A build may have been removed since; then its text is missing.
    let texts: Vec<Option<String>> =
        rows.iter().map(|row| row.text(0)).collect::<Result<_, _>>().map_err(StoreError::while_(what))?;
    Ok(texts.into_iter().flatten().collect())
}
