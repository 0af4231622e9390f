-- Messages that were set aside by age, to remove old ones.
CREATE INDEX set_aside_time ON set_aside (at_ms);
