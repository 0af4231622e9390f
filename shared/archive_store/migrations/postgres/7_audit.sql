-- Who did what to the farm, and whom it refused.
CREATE TABLE audit (
    position BIGINT PRIMARY KEY, at_ms BIGINT NOT NULL, kind TEXT COLLATE "C" NOT NULL, decision TEXT COLLATE "C" NOT NULL,
    who TEXT COLLATE "C" NOT NULL, proof TEXT COLLATE "C" NOT NULL, address TEXT COLLATE "C", call TEXT COLLATE "C" NOT NULL,
    target TEXT COLLATE "C", reason TEXT COLLATE "C", source TEXT COLLATE "C" NOT NULL, dropped BIGINT NOT NULL
);
CREATE INDEX audit_time ON audit (at_ms);
CREATE INDEX audit_who ON audit (who, position);
CREATE INDEX audit_target ON audit (target, position);
CREATE INDEX audit_kind ON audit (kind, position);
