//! Lists and searches of builds.
//!
//! The most selective condition chooses an index, which gives places, newest first; the other conditions are checked on at
//! most [`SCAN_MAX`] of them. A list that finds nothing within these says so by a cursor to continue with.

use model::{ArchivedBuildsRequest, ListReply, ListRequest, Outcome, State};

use super::{
    builds::{RECORD, view},
    page,
    query::Query,
    text,
};
use crate::{
    Store, StoreError,
    plain::{INDEXED_MAX, clean, whole},
    sql::{Connection, Dialect},
};

/// Maximum number of builds that one page checks.
const SCAN_MAX: i64 = 10_000;
const LIMIT: usize = 50;
/// Order of places and of times differ by at most this: several enqueuers accept builds at once.
const SLACK_MS: i64 = 600_000;
/// Maximum number of builds whose ids start with the same text that are considered.
const PREFIXED_MAX: i64 = 1000;

/// Places within which the page is: the time limits of the request as places.
struct Bounds {
    low: i64,
    before: i64,
}

/// What an index selects, and whether all conditions are then met.
struct Places {
    query: Query,
    exact: bool,
}

impl Store {
    /// A page of builds, newest first.
    pub async fn builds(&self, request: &ArchivedBuildsRequest) -> Result<ListReply, StoreError> {
        let list = &request.list;
        let limit = page::limit(list.limit, LIMIT)?;
        let mut connection = self.reader().await?;
        let bounds = bounds(list, &mut connection).await?;
        let places = places(self.dialect(), request, &bounds, &mut connection).await?;
        let query = matching(self.dialect(), request, &places.query, limit);
        let rows = query.fetch(&mut connection, "listing builds").await?;
        let mut found = Vec::with_capacity(rows.len());
        for row in &rows {
            found.push((row.whole(0).map_err(StoreError::while_("listing builds"))?, view(row, 1)?));
        }
        let (builds, next) = page::cut(found, limit);
        let next = match next {
            None if !places.exact => unchecked(&places.query, &mut connection).await?,
            next => next,
        };
        Ok(ListReply { builds, truncated: false, next: next.map(page::cursor) })
    }
}

/// The statement of a page.
pub(crate) async fn page_query(
    dialect: Dialect,
    request: &ArchivedBuildsRequest,
    connection: &mut Connection,
) -> Result<Query, StoreError> {
    let limit = page::limit(request.list.limit, LIMIT)?;
    let bounds = bounds(&request.list, connection).await?;
    let places = places(dialect, request, &bounds, connection).await?;
    Ok(matching(dialect, request, &places.query, limit))
}

/// The place after which builds were not checked, if there are any.
async fn unchecked(places: &Query, connection: &mut Connection) -> Result<Option<i64>, StoreError> {
    let sql = format!("SELECT COUNT(*), MIN(place) FROM ({}) s", places.sql);
    let query = Query { sql, values: places.values.clone() };
    let rows = query.fetch(connection, "counting the checked builds").await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let failed = |error| StoreError::while_("counting the checked builds")(error);
    let full = row.whole(0).map_err(failed)? >= SCAN_MAX;
    Ok(row.integer(1).map_err(failed)?.filter(|_| full))
}

/// A range of places that has all builds of the time range.
async fn bounds(list: &ListRequest, connection: &mut Connection) -> Result<Bounds, StoreError> {
    let mut bounds = Bounds { low: 0, before: page::before(list.cursor.as_deref())? };
    let what = "finding the builds of a time range";
    // A build outside of the range by more than the slack shows that all before, or after, its place are outside, too. The
    // one that is nearest in time inside shows nothing: others of the same moment have places on both sides of it.
    if let Some(since) = list.since_ms {
        let mut query = Query::new("SELECT place FROM builds WHERE submitted_ms < ");
        query.bind(whole(since.0).saturating_sub(SLACK_MS));
        query.add(" ORDER BY submitted_ms DESC, place DESC LIMIT 1");
        let rows = query.fetch(connection, what).await?;
        if let Some(row) = rows.first() {
            bounds.low = row.whole(0).map_err(StoreError::while_(what))?.saturating_add(1);
        }
    }
    if let Some(until) = list.until_ms {
        let mut query = Query::new("SELECT place FROM builds WHERE submitted_ms >= ");
        query.bind(whole(until.0).saturating_add(SLACK_MS));
        query.add(" ORDER BY submitted_ms, place LIMIT 1");
        let rows = query.fetch(connection, what).await?;
        if let Some(row) = rows.first() {
            let later = row.whole(0).map_err(StoreError::while_(what))?;
            bounds.before = bounds.before.min(later);
        }
    }
    Ok(bounds)
}

/// The places that the best index selects, newest first.
async fn places(
    dialect: Dialect,
    request: &ArchivedBuildsRequest,
    bounds: &Bounds,
    connection: &mut Connection,
) -> Result<Places, StoreError> {
    let list = &request.list;
    let mut query = match driver(request) {
        Driver::Text(text) => text::places(dialect, text, connection).await?,
        Driver::Prefix(prefix) => prefix_places(prefix),
        Driver::Property(kind, name, value) => {
            let mut query = Query::new("SELECT place FROM build_properties WHERE kind = ");
            query
                .bind(kind)
                .and("name =", clean(name, INDEXED_MAX))
                .and("value =", clean(value, INDEXED_MAX));
            query
        }
        Driver::Submitter(name) => {
            let mut query = Query::new("SELECT place FROM builds WHERE submitter = ");
            query.bind(clean(name, INDEXED_MAX));
            query
        }
        Driver::Outcome(outcome) => {
            // The index has no successful builds, which are most; both databases must see that it suffices.
            let mut query =
                Query::new("SELECT place FROM builds WHERE outcome <> 'succeeded' AND outcome = ");
            query.bind(outcome.as_str());
            query.and_if("build_group =", request.group.as_ref().map(model::Group::as_str));
            query
        }
        Driver::Unfinished(state) => {
            let mut query = Query::new("SELECT place FROM builds WHERE state <> 'FINISHED' AND state = ");
            query.bind(state.as_str());
            query
        }
        Driver::Group(group) => {
            let mut query = Query::new("SELECT place FROM builds WHERE build_group = ");
            query.bind(group);
            query
        }
        Driver::Priority(priority) => {
            let mut query = Query::new("SELECT place FROM builds WHERE priority = ");
            query.bind(priority);
            query
        }
        Driver::All => Query::new("SELECT place FROM builds WHERE 1 = 1"),
    };
    let place = if query.sql.starts_with("SELECT rowid") { "rowid" } else { "place" };
    query.and(if place == "rowid" { "rowid <" } else { "place <" }, bounds.before);
    if bounds.low > 0 {
        query.and(if place == "rowid" { "rowid >=" } else { "place >=" }, bounds.low);
    }
    query.add(if place == "rowid" { " ORDER BY rowid DESC LIMIT " } else { " ORDER BY place DESC LIMIT " });
    query.bind(SCAN_MAX);
    let conditions = [
        request.group.is_some(),
        list.state.is_some(),
        list.outcome.is_some(),
        list.priority.is_some(),
        list.submitter.is_some(),
        list.text.is_some(),
        list.id_prefix.is_some(),
        list.since_ms.is_some(),
        list.until_ms.is_some(),
    ];
    let count =
        conditions.iter().filter(|given| **given).count() + list.labels.len() + list.requirements.len();
    Ok(Places { query, exact: count <= 1 && list.text.is_none() })
}

/// The condition whose index selects places.
enum Driver<'a> {
    Text(&'a str),
    Prefix(&'a str),
    Property(&'static str, &'a str, &'a str),
    Submitter(&'a str),
    Outcome(Outcome),
    Unfinished(State),
    Group(&'a str),
    Priority(&'static str),
    All,
}

/// The condition that probably selects the fewest builds.
fn driver(request: &ArchivedBuildsRequest) -> Driver<'_> {
    let list = &request.list;
    if let Some(prefix) = list.id_prefix.as_deref() {
        return Driver::Prefix(prefix);
    }
    if let Some(text) = list.text.as_deref() {
        return Driver::Text(text);
    }
    if let Some((name, value)) = list.labels.first_key_value() {
        return Driver::Property("label", name, value);
    }
    if let Some((name, value)) = list.requirements.first_key_value() {
        return Driver::Property("requirement", name, value);
    }
    if let Some(name) = list.submitter.as_deref() {
        return Driver::Submitter(name);
    }
    match (list.outcome, list.state, &request.group, list.priority) {
        (Some(outcome), ..) if outcome != Outcome::Succeeded => Driver::Outcome(outcome),
        (_, Some(state @ (State::Enqueued | State::InProgress)), ..) => Driver::Unfinished(state),
        (_, _, Some(group), _) => Driver::Group(group.as_str()),
        (_, _, None, Some(priority)) => Driver::Priority(priority.as_str()),
        (_, _, None, None) => Driver::All,
    }
}

fn prefix_places(prefix: &str) -> Query {
    let digits: String =
        prefix.chars().filter(char::is_ascii_hexdigit).take(32).collect::<String>().to_lowercase();
    let mut id = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if [8, 12, 16, 20].contains(&index) {
            id.push('-');
        }
        id.push(digit);
    }
    let mut query = Query::new("SELECT place FROM (SELECT place FROM builds WHERE build_id >= ");
    query.bind(id.clone()).and("build_id <", format!("{id}~"));
    query.add(" ORDER BY build_id DESC LIMIT ").bind(PREFIXED_MAX).add(") p WHERE 1 = 1");
    query
}

/// The builds at these places that meet all conditions, and their records.
fn matching(dialect: Dialect, request: &ArchivedBuildsRequest, places: &Query, limit: usize) -> Query {
    let list = &request.list;
    let mut query = Query { sql: String::from("SELECT s.place, "), values: places.values.clone() };
    query.add(RECORD).add(" FROM (");
    query.sql.push_str(&places.sql);
    query.add(
        ") s CROSS JOIN builds b CROSS JOIN build_records r WHERE b.place = s.place AND r.place = s.place",
    );
    query.and_if("b.build_group =", request.group.as_ref().map(model::Group::as_str));
    query.and_if("b.state =", list.state.map(State::as_str));
    query.and_if("b.outcome =", list.outcome.map(Outcome::as_str));
    query.and_if("b.priority =", list.priority.map(model::Priority::as_str));
    query.and_if("b.submitter =", list.submitter.as_deref().map(|name| clean(name, INDEXED_MAX)));
    query.and_if("b.submitted_ms >=", list.since_ms.map(|at| whole(at.0)));
    query.and_if("b.submitted_ms <", list.until_ms.map(|at| whole(at.0)));
    let labels = list.labels.iter().map(|pair| ("label", pair));
    for (kind, (name, value)) in labels.chain(list.requirements.iter().map(|pair| ("requirement", pair))) {
        query.add(" AND EXISTS (SELECT 1 FROM build_properties p WHERE p.kind = ").bind(kind);
        query.and("p.name =", clean(name, INDEXED_MAX)).and("p.value =", clean(value, INDEXED_MAX));
        query.add(" AND p.place = s.place)");
    }
    if let Some(text) = &list.text {
        text::check(dialect, text, &mut query);
    }
    // SQLite reads the places in their order and joins row by row; with an order it would sort all of them first.
    if dialect == Dialect::Postgres {
        query.add(" ORDER BY s.place DESC");
    }
    query.add(" LIMIT ").bind(page::with_next(limit));
    query
}
