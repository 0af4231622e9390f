-- What a report sums up; NULL for builds that were archived before.
ALTER TABLE builds ADD COLUMN build_bytes BIGINT;
ALTER TABLE builds ADD COLUMN target_count BIGINT;
