-- Who did what to the farm, and whom it refused.
CREATE TABLE audit (
    position INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, kind TEXT NOT NULL, decision TEXT NOT NULL, who TEXT NOT NULL,
    proof TEXT NOT NULL, address TEXT, call TEXT NOT NULL, target TEXT, reason TEXT, source TEXT NOT NULL, dropped INTEGER NOT NULL
);
CREATE INDEX audit_time ON audit (at_ms);
CREATE INDEX audit_who ON audit (who, position);
CREATE INDEX audit_target ON audit (target, position);
CREATE INDEX audit_kind ON audit (kind, position);
