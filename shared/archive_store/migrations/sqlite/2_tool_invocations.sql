-- call: stands for group and id of a call of a build tool.
-- place: time in milliseconds and position of the first (or, of a test, of its own) message; it orders lists, newest last.
CREATE TABLE tool_invocations (
    call INTEGER PRIMARY KEY, place INTEGER NOT NULL, build_group TEXT NOT NULL, tool_invocation TEXT NOT NULL,
    build_id TEXT, build_attempt INTEGER, command TEXT, patterns TEXT, version TEXT, tool_user TEXT, tool_host TEXT,
    started_ms INTEGER, finished_ms INTEGER, exit_name TEXT, exit_code INTEGER, last_number INTEGER NOT NULL,
    complete INTEGER NOT NULL
);
CREATE INDEX tool_invocations_place ON tool_invocations (place);
CREATE INDEX tool_invocations_group ON tool_invocations (build_group, place);
CREATE INDEX tool_invocations_build ON tool_invocations (build_id, place) WHERE build_id IS NOT NULL;
CREATE TABLE targets (
    call INTEGER NOT NULL, label TEXT NOT NULL, aspect TEXT NOT NULL, kind TEXT, test_size TEXT, tags TEXT, status TEXT,
    test_status TEXT,
    PRIMARY KEY (call, label, aspect)
) WITHOUT ROWID;
CREATE TABLE tests (
    call INTEGER NOT NULL, label TEXT NOT NULL, run INTEGER NOT NULL, shard INTEGER NOT NULL, attempt INTEGER NOT NULL,
    configuration TEXT NOT NULL, place INTEGER NOT NULL, status TEXT NOT NULL, cached INTEGER NOT NULL, started_ms INTEGER,
    duration_ms INTEGER, strategy TEXT, log TEXT,
    PRIMARY KEY (call, label, run, shard, attempt, configuration)
) WITHOUT ROWID;
CREATE INDEX tests_label ON tests (label, place);
