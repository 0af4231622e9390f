-- call: stands for group and id of a call of a build tool.
-- place: time in milliseconds and position of the first (or, of a test, of its own) message; it orders lists, newest last.
CREATE TABLE tool_invocations (
    call BIGINT PRIMARY KEY, place BIGINT NOT NULL, build_group TEXT COLLATE "C" NOT NULL, tool_invocation TEXT COLLATE "C" NOT NULL,
    build_id TEXT COLLATE "C", build_attempt BIGINT, command TEXT COLLATE "C", patterns TEXT COLLATE "C", version TEXT COLLATE "C", tool_user TEXT COLLATE "C", tool_host TEXT COLLATE "C",
    started_ms BIGINT, finished_ms BIGINT, exit_name TEXT COLLATE "C", exit_code BIGINT, last_number BIGINT NOT NULL,
    complete BIGINT NOT NULL
);
CREATE INDEX tool_invocations_place ON tool_invocations (place);
CREATE INDEX tool_invocations_group ON tool_invocations (build_group, place);
CREATE INDEX tool_invocations_build ON tool_invocations (build_id, place) WHERE build_id IS NOT NULL;
CREATE TABLE targets (
    call BIGINT NOT NULL, label TEXT COLLATE "C" NOT NULL, aspect TEXT COLLATE "C" NOT NULL, kind TEXT COLLATE "C", test_size TEXT COLLATE "C", tags TEXT COLLATE "C", status TEXT COLLATE "C",
    test_status TEXT COLLATE "C",
    PRIMARY KEY (call, label, aspect)
);
CREATE TABLE tests (
    call BIGINT NOT NULL, label TEXT COLLATE "C" NOT NULL, run BIGINT NOT NULL, shard BIGINT NOT NULL, attempt BIGINT NOT NULL,
    configuration TEXT COLLATE "C" NOT NULL, place BIGINT NOT NULL, status TEXT COLLATE "C" NOT NULL, cached BIGINT NOT NULL, started_ms BIGINT,
    duration_ms BIGINT, strategy TEXT COLLATE "C", log TEXT COLLATE "C",
    PRIMARY KEY (call, label, run, shard, attempt, configuration)
);
CREATE INDEX tests_label ON tests (label, place);
