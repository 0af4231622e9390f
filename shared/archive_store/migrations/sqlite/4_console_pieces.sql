-- Console output, one row for each message. Of content, packed, blob and dropped_bytes, exactly one is set.
CREATE TABLE console_pieces (
    position INTEGER PRIMARY KEY, place INTEGER NOT NULL, attempt INTEGER NOT NULL, output TEXT,
    start_offset INTEGER NOT NULL, bytes INTEGER NOT NULL, lines INTEGER NOT NULL, dropped_bytes INTEGER, blob TEXT,
    content BLOB, packed BLOB
);
CREATE INDEX console_pieces_place ON console_pieces (place, position);
