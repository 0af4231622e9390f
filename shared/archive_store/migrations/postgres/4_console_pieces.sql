-- Console output, one row for each message. Of content, packed, blob and dropped_bytes, exactly one is set.
CREATE TABLE console_pieces (
    position BIGINT PRIMARY KEY, place BIGINT NOT NULL, attempt BIGINT NOT NULL, output TEXT COLLATE "C",
    start_offset BIGINT NOT NULL, bytes BIGINT NOT NULL, lines BIGINT NOT NULL, dropped_bytes BIGINT, blob TEXT COLLATE "C",
    content BYTEA, packed BYTEA
);
-- It is compressed already.
ALTER TABLE console_pieces ALTER COLUMN packed SET STORAGE EXTERNAL;
CREATE INDEX console_pieces_place ON console_pieces (place, position);
