-- place: the position of a build's first event (or of an execution's first record); it orders lists, newest last.
-- position: the position of the last event that was read; an earlier one never replaces it.
CREATE TABLE cursors (
    stream TEXT PRIMARY KEY, created_ms INTEGER NOT NULL, base INTEGER NOT NULL,
    position INTEGER NOT NULL, at_ms INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE gaps (
    stream TEXT NOT NULL, first_position INTEGER NOT NULL, last_position INTEGER NOT NULL,
    PRIMARY KEY (stream, first_position)
) WITHOUT ROWID;
CREATE TABLE set_aside (
    stream TEXT NOT NULL, position INTEGER NOT NULL, subject TEXT NOT NULL, at_ms INTEGER NOT NULL,
    size_bytes INTEGER NOT NULL, reason TEXT NOT NULL,
    PRIMARY KEY (stream, position)
) WITHOUT ROWID;

CREATE TABLE builds (
    place INTEGER PRIMARY KEY, build_group TEXT NOT NULL, build_id TEXT NOT NULL, position INTEGER NOT NULL,
    state TEXT NOT NULL, outcome TEXT, reason TEXT, priority TEXT NOT NULL, submitter TEXT,
    command TEXT NOT NULL, command_hash INTEGER NOT NULL, attempt INTEGER NOT NULL, exit_code INTEGER,
    submitted_ms INTEGER NOT NULL, enqueued_ms INTEGER NOT NULL, started_ms INTEGER, finished_ms INTEGER,
    worker TEXT, trace_id TEXT
);
CREATE UNIQUE INDEX builds_id ON builds (build_id, build_group);
CREATE INDEX builds_group ON builds (build_group, place);
CREATE INDEX builds_outcome ON builds (outcome, place) WHERE outcome IS NOT NULL AND outcome <> 'succeeded';
CREATE INDEX builds_group_outcome ON builds (build_group, outcome, place) WHERE outcome IS NOT NULL AND outcome <> 'succeeded';
CREATE INDEX builds_unfinished ON builds (state, place) WHERE state <> 'FINISHED';
CREATE INDEX builds_priority ON builds (priority, place);
CREATE INDEX builds_submitter ON builds (submitter, place) WHERE submitter IS NOT NULL;
CREATE INDEX builds_command ON builds (command_hash, place);
CREATE INDEX builds_submitted ON builds (submitted_ms, place);

CREATE TABLE build_records (place INTEGER PRIMARY KEY, position INTEGER NOT NULL, record TEXT, packed BLOB);
CREATE TABLE build_texts (place INTEGER PRIMARY KEY, search_text TEXT NOT NULL);
CREATE VIRTUAL TABLE build_search USING fts5 (
    search_text, content = '', contentless_delete = 1, detail = none, tokenize = 'trigram case_sensitive 1'
);
CREATE TABLE build_properties (
    kind TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, place INTEGER NOT NULL,
    PRIMARY KEY (kind, name, value, place)
) WITHOUT ROWID;
CREATE INDEX build_properties_place ON build_properties (place);
CREATE TABLE outputs (
    place INTEGER NOT NULL, number INTEGER NOT NULL, path TEXT NOT NULL, digest TEXT NOT NULL, size_bytes INTEGER NOT NULL,
    PRIMARY KEY (place, number)
) WITHOUT ROWID;

CREATE TABLE invocations (
    place INTEGER NOT NULL, attempt INTEGER NOT NULL, invocation_id TEXT, worker TEXT, workspace INTEGER,
    workspace_kind TEXT, fencing INTEGER, enqueued_ms INTEGER, started_ms INTEGER, prepared_ms INTEGER, ended_ms INTEGER,
    outcome TEXT, reason TEXT, message TEXT, exit_code INTEGER, overflow_digest TEXT, overflow_bytes INTEGER,
    PRIMARY KEY (place, attempt)
) WITHOUT ROWID;
CREATE UNIQUE INDEX invocations_id ON invocations (invocation_id, place, attempt) WHERE invocation_id IS NOT NULL;
CREATE TABLE consoles (
    place INTEGER NOT NULL, attempt INTEGER NOT NULL, output TEXT NOT NULL, first_position INTEGER NOT NULL,
    last_position INTEGER NOT NULL, bytes INTEGER NOT NULL, dropped_bytes INTEGER NOT NULL,
    PRIMARY KEY (place, attempt, output)
) WITHOUT ROWID;
CREATE TABLE tasks (
    place INTEGER NOT NULL, attempt INTEGER NOT NULL, task TEXT NOT NULL, position INTEGER NOT NULL, status TEXT NOT NULL,
    reason TEXT, exit_code INTEGER, cached INTEGER NOT NULL, executor TEXT, wall_ms INTEGER, ended_ms INTEGER NOT NULL,
    PRIMARY KEY (place, attempt, task)
) WITHOUT ROWID;
CREATE INDEX tasks_name ON tasks (task, place);

CREATE TABLE actions (
    place INTEGER PRIMARY KEY, action_group TEXT NOT NULL, execution_id TEXT NOT NULL, position INTEGER NOT NULL,
    action_digest TEXT NOT NULL, build_id TEXT, build_attempt INTEGER, tool TEXT, tool_invocation TEXT, target TEXT, mnemonic TEXT,
    band TEXT NOT NULL, attempt INTEGER NOT NULL, copies INTEGER NOT NULL, executor TEXT, code INTEGER, exit_code INTEGER,
    accepted_ms INTEGER NOT NULL, finished_ms INTEGER, queue_ms INTEGER, fetch_ms INTEGER, run_ms INTEGER, upload_ms INTEGER,
    cpu_ms INTEGER, memory_bytes INTEGER
);
CREATE UNIQUE INDEX actions_id ON actions (execution_id, action_group);
CREATE INDEX actions_build ON actions (build_id, place) WHERE build_id IS NOT NULL;
CREATE INDEX actions_tool_invocation ON actions (tool_invocation, place) WHERE tool_invocation IS NOT NULL;
CREATE INDEX actions_digest ON actions (action_digest, place);

CREATE TABLE day_sums (
    day INTEGER NOT NULL, build_group TEXT NOT NULL, priority TEXT NOT NULL, outcome TEXT NOT NULL,
    builds INTEGER NOT NULL, wait_ms INTEGER NOT NULL, run_ms INTEGER NOT NULL,
    PRIMARY KEY (day, build_group, priority, outcome)
) WITHOUT ROWID;
