//! The rows of each table as values. They are bound as JSON arrays, one for each table and batch.

use serde::{Serialize, Serializer, ser::SerializeSeq as _};

use crate::sql::Kind;

/// Rows of one table.
pub(crate) trait TableRow: Serialize {
    /// Columns in the order of the serialised row.
    const COLUMNS: &'static [(&'static str, Kind)];
}

/// Declares a row: its fields are the columns of the table, in order.
macro_rules! row {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty => $kind:ident,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub(crate) struct $name { $(pub(crate) $field: $type,)* }

        impl TableRow for $name {
            const COLUMNS: &'static [(&'static str, Kind)] = &[$((stringify!($field), Kind::$kind),)*];
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let mut row = serializer.serialize_seq(Some(Self::COLUMNS.len()))?;
                $(row.serialize_element(&self.$field)?;)*
                row.end()
            }
        }
    };
}

row! {
    /// A build in its last known state.
    BuildRow {
        place: i64 => Integer,
        build_group: String => Text,
        build_id: String => Text,
        position: i64 => Integer,
        state: &'static str => Text,
        outcome: Option<&'static str> => Text,
        reason: Option<String> => Text,
        priority: &'static str => Text,
        submitter: Option<String> => Text,
        command: String => Text,
        command_hash: i64 => Integer,
        attempt: i64 => Integer,
        exit_code: Option<i64> => Integer,
        submitted_ms: i64 => Integer,
        enqueued_ms: i64 => Integer,
        started_ms: Option<i64> => Integer,
        finished_ms: Option<i64> => Integer,
        worker: Option<String> => Text,
        trace_id: Option<String> => Text,
        build_bytes: Option<i64> => Integer,
        target_count: i64 => Integer,
    }
}

row! {
    /// The whole last record of a build as JSON, compressed if it is large.
    RecordRow {
        place: i64 => Integer,
        position: i64 => Integer,
        record: Option<String> => Text,
        packed: Option<String> => Bytes,
    }
}

row! {
    /// The text of a build that searches look at, in lower case.
    TextRow {
        place: i64 => Integer,
        search_text: String => Text,
    }
}

row! {
    /// A label of a build, or a requirement.
    PropertyRow {
        kind: &'static str => Text,
        name: String => Text,
        value: String => Text,
        place: i64 => Integer,
    }
}

row! {
    /// An output file of a build.
    OutputRow {
        place: i64 => Integer,
        number: i64 => Integer,
        path: String => Text,
        digest: String => Text,
        size_bytes: i64 => Integer,
    }
}

row! {
    /// What one message says of an attempt; absent fields are known from others.
    InvocationRow {
        place: i64 => Integer,
        attempt: i64 => Integer,
        invocation_id: Option<String> => Text,
        worker: Option<String> => Text,
        workspace: Option<i64> => Integer,
        workspace_kind: Option<&'static str> => Text,
        fencing: Option<i64> => Integer,
        enqueued_ms: Option<i64> => Integer,
        started_ms: Option<i64> => Integer,
        ended_ms: Option<i64> => Integer,
        outcome: Option<&'static str> => Text,
        reason: Option<String> => Text,
        message: Option<String> => Text,
        exit_code: Option<i64> => Integer,
        overflow_digest: Option<String> => Text,
        overflow_bytes: Option<i64> => Integer,
    }
}

row! {
    /// When the workspace of an attempt was ready.
    PreparedRow {
        build_group: String => Text,
        build_id: String => Text,
        attempt: i64 => Integer,
        prepared_ms: i64 => Integer,
        position: i64 => Integer,
    }
}

row! {
    /// Where the console output of an attempt is in the stream.
    ConsoleRow {
        build_group: String => Text,
        build_id: String => Text,
        attempt: i64 => Integer,
        output: &'static str => Text,
        first_position: i64 => Integer,
        last_position: i64 => Integer,
        bytes: i64 => Integer,
        dropped_bytes: i64 => Integer,
    }
}

row! {
    /// One message of console output: the output, a frame of it in the store, or a gap.
    PieceRow {
        build_group: String => Text,
        build_id: String => Text,
        position: i64 => Integer,
        attempt: i64 => Integer,
        output: Option<&'static str> => Text,
        start_offset: i64 => Integer,
        bytes: i64 => Integer,
        lines: i64 => Integer,
        dropped_bytes: Option<i64> => Integer,
        blob: Option<String> => Text,
        content: Option<String> => Bytes,
        packed: Option<String> => Bytes,
    }
}

row! {
    /// The end of a task of a job.
    TaskRow {
        build_group: String => Text,
        build_id: String => Text,
        attempt: i64 => Integer,
        task: String => Text,
        position: i64 => Integer,
        status: &'static str => Text,
        reason: Option<String> => Text,
        exit_code: Option<i64> => Integer,
        cached: i64 => Integer,
        executor: Option<String> => Text,
        wall_ms: Option<i64> => Integer,
        ended_ms: i64 => Integer,
    }
}

row! {
    /// An execution of an action in its last known state.
    ActionRow {
        place: i64 => Integer,
        action_group: String => Text,
        execution_id: String => Text,
        position: i64 => Integer,
        action_digest: String => Text,
        build_id: Option<String> => Text,
        build_attempt: Option<i64> => Integer,
        tool: Option<String> => Text,
        tool_invocation: Option<String> => Text,
        target: Option<String> => Text,
        mnemonic: Option<String> => Text,
        band: &'static str => Text,
        attempt: i64 => Integer,
        copies: i64 => Integer,
        executor: Option<String> => Text,
        code: Option<i64> => Integer,
        exit_code: Option<i64> => Integer,
        accepted_ms: i64 => Integer,
        finished_ms: Option<i64> => Integer,
        queue_ms: Option<i64> => Integer,
        fetch_ms: Option<i64> => Integer,
        run_ms: Option<i64> => Integer,
        upload_ms: Option<i64> => Integer,
        cpu_ms: Option<i64> => Integer,
        memory_bytes: Option<i64> => Integer,
    }
}

row! {
    /// What one message says of a call of a build tool; absent fields are known from others.
    ToolInvocationRow {
        call: i64 => Integer,
        place: i64 => Integer,
        build_group: String => Text,
        tool_invocation: String => Text,
        build_id: Option<String> => Text,
        build_attempt: Option<i64> => Integer,
        command: Option<String> => Text,
        patterns: Option<String> => Text,
        version: Option<String> => Text,
        tool_user: Option<String> => Text,
        tool_host: Option<String> => Text,
        started_ms: Option<i64> => Integer,
        finished_ms: Option<i64> => Integer,
        exit_name: Option<String> => Text,
        exit_code: Option<i64> => Integer,
        last_number: i64 => Integer,
        complete: i64 => Integer,
    }
}

row! {
    /// What one message says of a target of a call; absent fields are known from others.
    TargetRow {
        call: i64 => Integer,
        label: String => Text,
        aspect: String => Text,
        kind: Option<String> => Text,
        test_size: Option<&'static str> => Text,
        tags: Option<String> => Text,
        status: Option<&'static str> => Text,
        test_status: Option<&'static str> => Text,
    }
}

row! {
    /// One attempt of a test.
    TestRow {
        call: i64 => Integer,
        label: String => Text,
        run: i64 => Integer,
        shard: i64 => Integer,
        attempt: i64 => Integer,
        configuration: String => Text,
        place: i64 => Integer,
        status: &'static str => Text,
        cached: i64 => Integer,
        started_ms: Option<i64> => Integer,
        duration_ms: Option<i64> => Integer,
        strategy: Option<String> => Text,
        log: Option<String> => Text,
    }
}

row! {
    /// What someone did to the farm, or was refused.
    AuditRow {
        position: i64 => Integer,
        at_ms: i64 => Integer,
        kind: &'static str => Text,
        decision: &'static str => Text,
        who: String => Text,
        proof: &'static str => Text,
        address: Option<String> => Text,
        call: String => Text,
        target: Option<String> => Text,
        reason: Option<String> => Text,
        source: String => Text,
        dropped: i64 => Integer,
    }
}

row! {
    /// A message that cannot be archived.
    SetAsideRow {
        stream: &'static str => Text,
        position: i64 => Integer,
        subject: String => Text,
        at_ms: i64 => Integer,
        size_bytes: i64 => Integer,
        reason: String => Text,
    }
}
