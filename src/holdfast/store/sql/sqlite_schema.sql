-- One file of entries and edges. Nothing here is derived from a journal.

-- A scope that has entries. `newest` counts its changes, and each is the version of what was changed.
-- `reset` is the change by which a vector last went: whoever knows the vectors of before must read them anew.
CREATE TABLE scopes (
  id     INTEGER PRIMARY KEY,
  name   TEXT NOT NULL UNIQUE,
  newest INTEGER NOT NULL,
  reset  INTEGER NOT NULL
) STRICT;

-- The largest version of scopes that are gone: one that begins anew goes on from there.
CREATE TABLE gone (
  newest INTEGER NOT NULL
) STRICT;

INSERT INTO gone (newest) VALUES (0);

CREATE TABLE entries (
  id           INTEGER PRIMARY KEY,
  scope        INTEGER NOT NULL REFERENCES scopes (id),
  key          TEXT NOT NULL,
  version      INTEGER NOT NULL,
  written_at   INTEGER NOT NULL,
  expires_at   INTEGER,
  tier         TEXT,
  lifetime     TEXT,
  content_kind TEXT,
  salience     REAL,
  schema       TEXT,
  embedder     TEXT,
  applied      TEXT,
  value        BLOB NOT NULL,
  vector       BLOB,
  words        TEXT
) STRICT;

CREATE UNIQUE INDEX idx_entries_key ON entries (scope, key);
CREATE INDEX idx_entries_lifetime ON entries (scope, lifetime, key) WHERE lifetime IS NOT NULL;
CREATE INDEX idx_entries_expiry ON entries (expires_at, scope) WHERE expires_at IS NOT NULL;
CREATE INDEX idx_entries_vector ON entries (scope, version) WHERE vector IS NOT NULL;

CREATE TABLE edges (
  scope        TEXT NOT NULL,
  source       TEXT NOT NULL,
  kind         TEXT NOT NULL,
  target_scope TEXT NOT NULL,
  target       TEXT NOT NULL,
  weight       REAL,
  data         BLOB NOT NULL,
  PRIMARY KEY (scope, source, kind, target_scope, target)
) STRICT, WITHOUT ROWID;

CREATE INDEX idx_edges_target ON edges (target_scope, target, kind);
