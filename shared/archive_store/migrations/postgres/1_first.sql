-- place: the position of a build's first event (or of an execution's first record); it orders lists, newest last.
-- position: the position of the last event that was read; an earlier one never replaces it.
CREATE TABLE cursors (
    stream TEXT COLLATE "C" PRIMARY KEY, created_ms BIGINT NOT NULL, base BIGINT NOT NULL,
    position BIGINT NOT NULL, at_ms BIGINT NOT NULL
);
CREATE TABLE gaps (
    stream TEXT COLLATE "C" NOT NULL, first_position BIGINT NOT NULL, last_position BIGINT NOT NULL,
    PRIMARY KEY (stream, first_position)
);
CREATE TABLE set_aside (
    stream TEXT COLLATE "C" NOT NULL, position BIGINT NOT NULL, subject TEXT COLLATE "C" NOT NULL, at_ms BIGINT NOT NULL,
    size_bytes BIGINT NOT NULL, reason TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (stream, position)
);

CREATE TABLE builds (
    place BIGINT PRIMARY KEY, build_group TEXT COLLATE "C" NOT NULL, build_id TEXT COLLATE "C" NOT NULL, position BIGINT NOT NULL,
    state TEXT COLLATE "C" NOT NULL, outcome TEXT COLLATE "C", reason TEXT COLLATE "C", priority TEXT COLLATE "C" NOT NULL, submitter TEXT COLLATE "C",
    command TEXT COLLATE "C" NOT NULL, command_hash BIGINT NOT NULL, attempt BIGINT NOT NULL, exit_code BIGINT,
    submitted_ms BIGINT NOT NULL, enqueued_ms BIGINT NOT NULL, started_ms BIGINT, finished_ms BIGINT,
    worker TEXT COLLATE "C", trace_id TEXT COLLATE "C"
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

CREATE TABLE build_records (place BIGINT PRIMARY KEY, position BIGINT NOT NULL, record TEXT COLLATE "C", packed BYTEA);
CREATE TABLE build_texts (place BIGINT PRIMARY KEY, search_text TEXT COLLATE "C" NOT NULL);
CREATE EXTENSION IF NOT EXISTS pg_trgm;
CREATE INDEX build_texts_search ON build_texts USING gin (search_text gin_trgm_ops);
CREATE TABLE build_properties (
    kind TEXT COLLATE "C" NOT NULL, name TEXT COLLATE "C" NOT NULL, value TEXT COLLATE "C" NOT NULL, place BIGINT NOT NULL,
    PRIMARY KEY (kind, name, value, place)
);
CREATE INDEX build_properties_place ON build_properties (place);
CREATE TABLE outputs (
    place BIGINT NOT NULL, number BIGINT NOT NULL, path TEXT COLLATE "C" NOT NULL, digest TEXT COLLATE "C" NOT NULL, size_bytes BIGINT NOT NULL,
    PRIMARY KEY (place, number)
);

CREATE TABLE invocations (
    place BIGINT NOT NULL, attempt BIGINT NOT NULL, invocation_id TEXT COLLATE "C", worker TEXT COLLATE "C", workspace BIGINT,
    workspace_kind TEXT COLLATE "C", fencing BIGINT, enqueued_ms BIGINT, started_ms BIGINT, prepared_ms BIGINT, ended_ms BIGINT,
    outcome TEXT COLLATE "C", reason TEXT COLLATE "C", message TEXT COLLATE "C", exit_code BIGINT, overflow_digest TEXT COLLATE "C", overflow_bytes BIGINT,
    PRIMARY KEY (place, attempt)
);
CREATE UNIQUE INDEX invocations_id ON invocations (invocation_id, place, attempt) WHERE invocation_id IS NOT NULL;
CREATE TABLE consoles (
    place BIGINT NOT NULL, attempt BIGINT NOT NULL, output TEXT COLLATE "C" NOT NULL, first_position BIGINT NOT NULL,
    last_position BIGINT NOT NULL, bytes BIGINT NOT NULL, dropped_bytes BIGINT NOT NULL,
    PRIMARY KEY (place, attempt, output)
);
CREATE TABLE tasks (
    place BIGINT NOT NULL, attempt BIGINT NOT NULL, task TEXT COLLATE "C" NOT NULL, position BIGINT NOT NULL, status TEXT COLLATE "C" NOT NULL,
    reason TEXT COLLATE "C", exit_code BIGINT, cached BIGINT NOT NULL, executor TEXT COLLATE "C", wall_ms BIGINT, ended_ms BIGINT NOT NULL,
    PRIMARY KEY (place, attempt, task)
);
CREATE INDEX tasks_name ON tasks (task, place);

CREATE TABLE actions (
    place BIGINT PRIMARY KEY, action_group TEXT COLLATE "C" NOT NULL, execution_id TEXT COLLATE "C" NOT NULL, position BIGINT NOT NULL,
    action_digest TEXT COLLATE "C" NOT NULL, build_id TEXT COLLATE "C", build_attempt BIGINT, tool TEXT COLLATE "C", tool_invocation TEXT COLLATE "C", target TEXT COLLATE "C", mnemonic TEXT COLLATE "C",
    band TEXT COLLATE "C" NOT NULL, attempt BIGINT NOT NULL, copies BIGINT NOT NULL, executor TEXT COLLATE "C", code BIGINT, exit_code BIGINT,
    accepted_ms BIGINT NOT NULL, finished_ms BIGINT, queue_ms BIGINT, fetch_ms BIGINT, run_ms BIGINT, upload_ms BIGINT,
    cpu_ms BIGINT, memory_bytes BIGINT
);
CREATE UNIQUE INDEX actions_id ON actions (execution_id, action_group);
CREATE INDEX actions_build ON actions (build_id, place) WHERE build_id IS NOT NULL;
CREATE INDEX actions_tool_invocation ON actions (tool_invocation, place) WHERE tool_invocation IS NOT NULL;
CREATE INDEX actions_digest ON actions (action_digest, place);

CREATE TABLE day_sums (
    day BIGINT NOT NULL, build_group TEXT COLLATE "C" NOT NULL, priority TEXT COLLATE "C" NOT NULL, outcome TEXT COLLATE "C" NOT NULL,
    builds BIGINT NOT NULL, wait_ms BIGINT NOT NULL, run_ms BIGINT NOT NULL,
    PRIMARY KEY (day, build_group, priority, outcome)
);
