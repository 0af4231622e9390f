//! The statements of a batch: one for each table, which binds all its rows as one JSON array.

use crate::{
    rows::{
        ActionRow, AuditRow, BuildRow, ConsoleRow, InvocationRow, OutputRow, PieceRow, PropertyRow,
        RecordRow, SetAsideRow, TableRow, TargetRow, TaskRow, TestRow, TextRow, ToolInvocationRow,
    },
    sql::{Dialect, Kind, Sql},
};

/// The statements that write.
pub(crate) struct Statements {
    pub(crate) begin: Sql,
    pub(crate) commit: Sql,
    pub(crate) rollback: Sql,
    pub(crate) cursor: Sql,
    pub(crate) advance: Sql,
    pub(crate) add_cursor: Sql,
    pub(crate) rebase: Sql,
    pub(crate) gap: Sql,
    pub(crate) other_places: Sql,
    pub(crate) sums: Sql,
    pub(crate) builds: Sql,
    pub(crate) records: Sql,
    /// Only SQLite has an index of texts that is a table.
    pub(crate) search: Option<Sql>,
    pub(crate) texts: Sql,
    pub(crate) properties: Sql,
    pub(crate) outputs: Sql,
    pub(crate) invocations: Sql,
    pub(crate) prepared: Sql,
    pub(crate) consoles: Sql,
    pub(crate) pieces: Sql,
    pub(crate) tasks: Sql,
    pub(crate) actions: Sql,
    pub(crate) tool_invocations: Sql,
    pub(crate) targets: Sql,
    pub(crate) tests: Sql,
    pub(crate) audit: Sql,
    pub(crate) set_aside: Sql,
}

impl Statements {
    pub(crate) fn new(dialect: Dialect) -> Self {
        let with = Writing { dialect };
        Self {
            begin: dialect.begin().into(),
            commit: "COMMIT".into(),
            rollback: "ROLLBACK".into(),
            cursor: "SELECT created_ms, base, position, at_ms FROM cursors WHERE stream = $1".into(),
            advance: "UPDATE cursors SET position = $2, at_ms = $3 WHERE stream = $1 AND position = $4".into(),
            add_cursor: "INSERT INTO cursors (stream, created_ms, base, position, at_ms) VALUES ($1, $2, 0, 0, 0) \
                         ON CONFLICT DO NOTHING"
                .into(),
            rebase: "UPDATE cursors SET created_ms = $2, base = position WHERE stream = $1".into(),
            gap: "INSERT INTO gaps (stream, first_position, last_position) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING"
                .into(),
            other_places: with.other_places(),
            sums: with.sums(),
            builds: with.latest::<BuildRow>("builds", "build_id, build_group", &["place", "build_id", "build_group"]),
            records: with.latest::<RecordRow>("build_records", "place", &["place"]),
            search: with.search(),
            texts: with.once::<TextRow>("build_texts"),
            properties: with.once::<PropertyRow>("build_properties"),
            outputs: with.once::<OutputRow>("outputs"),
            invocations: with.invocations(),
            prepared: with.prepared(),
            consoles: with.consoles(),
            pieces: with.once_of_builds::<PieceRow>("console_pieces"),
            tasks: with.once_of_builds::<TaskRow>("tasks"),
            actions: with.latest::<ActionRow>("actions", "place", &["place"]),
            tool_invocations: with.tool_invocations(),
            targets: with.targets(),
            tests: with.once::<TestRow>("tests"),
            audit: with.once::<AuditRow>("audit"),
            set_aside: with.once::<SetAsideRow>("set_aside"),
        }
    }
}

struct Writing {
    dialect: Dialect,
}

impl Writing {
    /// The columns of a row, as values of the JSON array `$1`.
    fn values<R: TableRow>(&self) -> String {
        let values =
            R::COLUMNS.iter().enumerate().map(|(index, (_, kind))| self.dialect.column(index, *kind));
        values.collect::<Vec<_>>().join(", ")
    }

    fn names<R: TableRow>() -> String {
        R::COLUMNS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
    }

    fn insert<R: TableRow>(&self, table: &str) -> String {
        // With `WHERE`, SQLite does not read `ON CONFLICT` as a condition of a join.
        let (names, values, rows) = (Self::names::<R>(), self.values::<R>(), self.dialect.rows());
        format!("INSERT INTO {table} ({names}) SELECT {values} FROM {rows} WHERE 1 = 1")
    }

    /// Adds rows that never change.
    fn once<R: TableRow>(&self, table: &str) -> Sql {
        format!("{} ON CONFLICT DO NOTHING", self.insert::<R>(table)).into()
    }

    /// Adds rows, or replaces those of an earlier position.
    fn latest<R: TableRow>(&self, table: &str, conflict: &str, fixed: &[&str]) -> Sql {
        let changing = R::COLUMNS.iter().map(|(name, _)| *name).filter(|name| !fixed.contains(name));
        let set = changing.map(|name| format!("{name} = excluded.{name}")).collect::<Vec<_>>().join(", ");
        let insert = self.insert::<R>(table);
        format!(
            "{insert} ON CONFLICT ({conflict}) DO UPDATE SET {set} WHERE excluded.position > {table}.position"
        )
        .into()
    }

    /// Adds texts to the index, each once. Runs before they are added to their table.
    fn search(&self) -> Option<Sql> {
        let Dialect::Sqlite = self.dialect else { return None };
        let (values, rows) = (self.values::<TextRow>(), self.dialect.rows());
        let sql = format!(
            "INSERT INTO build_search (rowid, search_text) SELECT {values} FROM {rows} \
             WHERE NOT EXISTS (SELECT 1 FROM build_texts t WHERE t.place = CAST(e.value ->> 0 AS BIGINT))"
        );
        Some(sql.into())
    }

    /// Known places of builds, and those in the batch, where these differ: the id was published again.
    fn other_places(&self) -> Sql {
        let (rows, column) = (self.dialect.rows(), |index, kind| self.dialect.column(index, kind));
        let (group, id, place) = (column(0, Kind::Text), column(1, Kind::Text), column(2, Kind::Integer));
        format!(
            "SELECT {place}, b.place FROM {rows}, builds b \
             WHERE b.build_id = {id} AND b.build_group = {group} AND b.place <> {place}"
        )
        .into()
    }

    /// Adds up the builds that end with this batch. Runs before their rows are written, and counts none that had ended.
    fn sums(&self) -> Sql {
        let at = |name: &str| {
            let index = BuildRow::COLUMNS.iter().position(|(known, _)| *known == name).unwrap_or_default();
            let kind = BuildRow::COLUMNS.get(index).map_or(Kind::Text, |(_, kind)| *kind);
            self.dialect.column(index, kind)
        };
        let (rows, finished, started) = (self.dialect.rows(), at("finished_ms"), at("started_ms"));
        let (id, group, enqueued) = (at("build_id"), at("build_group"), at("enqueued_ms"));
        let (priority, outcome, most) = (at("priority"), at("outcome"), self.dialect.greatest());
        format!(
            "INSERT INTO day_sums (day, build_group, priority, outcome, builds, wait_ms, run_ms) \
             SELECT {finished} / 86400000, {group}, {priority}, {outcome}, COUNT(*), \
             CAST(SUM({most}(COALESCE({started}, {finished}) - {enqueued}, 0)) AS BIGINT), \
             CAST(SUM({most}({finished} - COALESCE({started}, {finished}), 0)) AS BIGINT) \
             FROM {rows} WHERE {outcome} IS NOT NULL AND NOT EXISTS (SELECT 1 FROM builds b \
             WHERE b.build_id = {id} AND b.build_group = {group} AND b.outcome IS NOT NULL) \
             GROUP BY 1, 2, 3, 4 \
             ON CONFLICT (day, build_group, priority, outcome) DO UPDATE SET builds = day_sums.builds + excluded.builds, \
             wait_ms = day_sums.wait_ms + excluded.wait_ms, run_ms = day_sums.run_ms + excluded.run_ms"
        )
        .into()
    }

    /// Each message says a part of what is known of an attempt: known values stay unless a message has others.
    fn invocations(&self) -> Sql {
        self.merged::<InvocationRow>("invocations", &["place", "attempt"], &[])
    }

    /// Adds rows, or what they say in addition to known ones with the same `key`. Each column of `own` has an expression
    /// that sets it in a known row.
    fn merged<R: TableRow>(&self, table: &str, key: &[&str], own: &[(&str, String)]) -> Sql {
        let is_own = |name: &str| own.iter().any(|(own, _)| *own == name);
        let changing = R::COLUMNS.iter().map(|(name, _)| *name);
        let changing = changing.filter(|name| !key.contains(name) && !is_own(name));
        let set = changing.map(|name| format!("{name} = COALESCE(excluded.{name}, {table}.{name})"));
        let set = set.chain(own.iter().map(|(name, value)| format!("{name} = {value}")));
        let (insert, set) = (self.insert::<R>(table), set.collect::<Vec<_>>().join(", "));
        format!("{insert} ON CONFLICT ({}) DO UPDATE SET {set}", key.join(", ")).into()
    }

    fn tool_invocations(&self) -> Sql {
        let (most, least) = (self.dialect.greatest(), self.dialect.least());
        let of = |function: &str, name: &str| format!("{function}(tool_invocations.{name}, excluded.{name})");
        let own = [
            ("place", of(least, "place")),
            ("last_number", of(most, "last_number")),
            ("complete", of(most, "complete")),
        ];
        self.merged::<ToolInvocationRow>("tool_invocations", &["call"], &own)
    }

    /// A target that failed in one configuration has failed.
    fn targets(&self) -> Sql {
        let status = "CASE WHEN targets.status = 'failed' THEN targets.status \
                      ELSE COALESCE(excluded.status, targets.status) END";
        let own = [("status", status.to_owned())];
        self.merged::<TargetRow>("targets", &["call", "label", "aspect"], &own)
    }

    fn prepared(&self) -> Sql {
        let (rows, column) = (self.dialect.rows(), |index, kind| self.dialect.column(index, kind));
        let (group, id) = (column(0, Kind::Text), column(1, Kind::Text));
        let (attempt, prepared) = (column(2, Kind::Integer), column(3, Kind::Integer));
        let position = column(4, Kind::Integer);
        format!(
            "UPDATE invocations SET prepared_ms = {prepared} FROM {rows}, builds b \
             WHERE b.build_id = {id} AND b.build_group = {group} \
             AND invocations.place = b.place AND invocations.attempt = {attempt} AND b.place <= {position}"
        )
        .into()
    }

    /// Adds rows that name their build by group and id, the first two columns. What was written before the build was
    /// accepted belongs to an earlier one with its id.
    fn of_builds<R: TableRow>(&self, table: &str) -> String {
        let rest = R::COLUMNS.iter().enumerate().skip(2);
        let names = rest.clone().map(|(_, (name, _))| *name).collect::<Vec<_>>().join(", ");
        let values = rest.map(|(index, (_, kind))| self.dialect.column(index, *kind));
        let (values, rows) = (values.collect::<Vec<_>>().join(", "), self.dialect.rows());
        let (group, id) = (self.dialect.column(0, Kind::Text), self.dialect.column(1, Kind::Text));
        let is_position = |(name, _): &(&str, Kind)| matches!(*name, "position" | "first_position");
        let position = R::COLUMNS.iter().position(is_position).unwrap_or_default();
        let position = self.dialect.column(position, Kind::Integer);
        format!(
            "INSERT INTO {table} (place, {names}) SELECT b.place, {values} FROM {rows}, builds b \
             WHERE b.build_id = {id} AND b.build_group = {group} AND b.place <= {position}"
        )
    }

    fn consoles(&self) -> Sql {
        let (insert, most, least) =
            (self.of_builds::<ConsoleRow>("consoles"), self.dialect.greatest(), self.dialect.least());
        format!(
            "{insert} ON CONFLICT (place, attempt, output) DO UPDATE SET \
             first_position = {least}(consoles.first_position, excluded.first_position), \
             last_position = {most}(consoles.last_position, excluded.last_position), \
             bytes = {most}(consoles.bytes, excluded.bytes), \
             dropped_bytes = {most}(consoles.dropped_bytes, excluded.dropped_bytes)"
        )
        .into()
    }

    /// Adds rows of builds that never change.
    fn once_of_builds<R: TableRow>(&self, table: &str) -> Sql {
        format!("{} ON CONFLICT DO NOTHING", self.of_builds::<R>(table)).into()
    }
}
