-- The journal: events, the streams they belong to, and the tables derived from them.
--
-- Tables are of three kinds:
--   journal      the truth: events and streams, tenants, subjects, artifacts
--   projection   derived from events in the same transaction; rebuilt, equal in canonical dump
--   control      neither: settings and secrets of this file; invariants are checked
--
-- Every key begins with tenant. ULIDs and hashes are blobs, streams are integers.
-- Facts and content are canonical bytes, so blobs: SQLite must never convert them.

-- control ---------------------------------------------------------------------------

CREATE TABLE meta (
    name   TEXT PRIMARY KEY,
    value  BLOB NOT NULL,
    digest BLOB NOT NULL
) STRICT, WITHOUT ROWID;

-- Erasures whose last steps (files, log) are still to be done. `digest` lets the same request
-- find itself again although the name is gone; the row goes when everything is done.
CREATE TABLE erasures (
    tenant    INTEGER NOT NULL REFERENCES tenants (id),
    subject   INTEGER NOT NULL,
    digest    BLOB NOT NULL,
    events    INTEGER NOT NULL,
    artifacts INTEGER NOT NULL,
    PRIMARY KEY (tenant, subject)
) STRICT, WITHOUT ROWID;

-- Signs of life of whoever owns a stream. Who that is, and under which epoch, is in the stream itself.
CREATE TABLE leases (
    tenant   INTEGER NOT NULL,
    stream   INTEGER NOT NULL,
    renewals INTEGER NOT NULL,
    digest   BLOB NOT NULL,
    PRIMARY KEY (tenant, stream),
    FOREIGN KEY (tenant, stream) REFERENCES streams (tenant, id)
) STRICT, WITHOUT ROWID;

-- journal ---------------------------------------------------------------------------

CREATE TABLE tenants (
    id   INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE CHECK (length(name) > 0)
) STRICT;

-- Pseudonyms. A name can be erased; the integer stays in the events and in their chain.
CREATE TABLE subjects (
    tenant INTEGER NOT NULL REFERENCES tenants (id),
    id     INTEGER NOT NULL,
    name   TEXT,
    digest BLOB,
    PRIMARY KEY (tenant, id),
    UNIQUE (tenant, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE streams (
    id         INTEGER PRIMARY KEY,
    tenant     INTEGER NOT NULL REFERENCES tenants (id),
    name       TEXT NOT NULL CHECK (length(name) > 0),
    actor_id   TEXT,
    session_id TEXT,
    thread_id  TEXT,
    version    INTEGER NOT NULL CHECK (version > 0),
    head       BLOB NOT NULL CHECK (length(head) = 32),
    epoch      INTEGER NOT NULL,
    holder     TEXT,
    lease_ms   INTEGER NOT NULL,
    closed     INTEGER NOT NULL CHECK (closed IN (0, 1)),
    UNIQUE (tenant, name),
    UNIQUE (tenant, id)
) STRICT;

-- Actor, session and thread are columns of the stream: events and frames are found through it,
-- so each name is stored and indexed once and not with every row.
CREATE INDEX idx_streams_actor ON streams (tenant, actor_id) WHERE actor_id IS NOT NULL;
CREATE INDEX idx_frames_session_thread ON streams (tenant, session_id, thread_id) WHERE session_id IS NOT NULL;

-- `seq` is a cursor and nothing else; order is (stream, version). Rows are never deleted,
-- so it needs no AUTOINCREMENT and its extra page per commit.
CREATE TABLE events (
    seq         INTEGER PRIMARY KEY,
    tenant      INTEGER NOT NULL,
    stream      INTEGER NOT NULL,
    version     INTEGER NOT NULL CHECK (version > 0),
    event_id    BLOB NOT NULL CHECK (length(event_id) = 16),
    timestamp   INTEGER NOT NULL,
    event_type  TEXT NOT NULL,
    schema      INTEGER NOT NULL,
    key         TEXT,
    rest        INTEGER NOT NULL,
    epoch       INTEGER,
    origin      TEXT NOT NULL,
    trust       TEXT NOT NULL,
    user_id     INTEGER,
    subject     INTEGER,
    causation   BLOB,
    correlation BLOB,
    app         TEXT,
    facts       BLOB NOT NULL,
    content     BLOB,
    salt        BLOB,
    digest      BLOB,
    mac         BLOB,
    hash        BLOB NOT NULL CHECK (length(hash) = 32),
    FOREIGN KEY (tenant, stream) REFERENCES streams (tenant, id),
    FOREIGN KEY (tenant, user_id) REFERENCES subjects (tenant, id),
    FOREIGN KEY (tenant, subject) REFERENCES subjects (tenant, id)
) STRICT;

CREATE UNIQUE INDEX events_place ON events (tenant, stream, version);
CREATE UNIQUE INDEX events_id ON events (tenant, event_id);
CREATE UNIQUE INDEX events_key ON events (tenant, stream, key) WHERE key IS NOT NULL;
CREATE INDEX events_subject ON events (tenant, subject) WHERE subject IS NOT NULL;
CREATE INDEX idx_events_type ON events (tenant, event_type);
CREATE INDEX events_opened ON events (tenant, user_id) WHERE event_type = 'session.opened';

-- Append-only, said by the database itself. Erasure may empty content, salt and digest, and nothing else.
CREATE TRIGGER events_never_deleted BEFORE DELETE ON events
BEGIN
    SELECT raise(ABORT, 'events are never deleted');
END;

CREATE TRIGGER events_never_changed
BEFORE UPDATE OF seq, tenant, stream, version, event_id, timestamp, event_type, schema, key, rest, epoch, origin,
    trust, user_id, subject, causation, correlation, app, facts, hash ON events
BEGIN
    SELECT raise(ABORT, 'events are never changed');
END;

CREATE TRIGGER events_only_erased
BEFORE UPDATE OF content, salt, digest, mac ON events
WHEN new.content IS NOT NULL OR new.salt IS NOT NULL OR new.digest IS NOT NULL OR new.mac IS NULL
BEGIN
    SELECT raise(ABORT, 'content can only be erased');
END;

-- `file` says that the body lies beside the database. An erased one keeps its row.
-- The name covers the body, and `digest` the columns before it.
CREATE TABLE artifacts (
    tenant    INTEGER NOT NULL REFERENCES tenants (id),
    name      BLOB NOT NULL CHECK (length(name) = 32),
    size      INTEGER NOT NULL,
    placed_at INTEGER NOT NULL,
    file      INTEGER NOT NULL CHECK (file IN (0, 1)),
    erased    INTEGER NOT NULL CHECK (erased IN (0, 1)),
    digest    BLOB NOT NULL,
    body      BLOB,
    PRIMARY KEY (tenant, name)
) STRICT;

CREATE INDEX artifacts_unfinished ON artifacts (tenant) WHERE erased = 1 AND file = 1;

-- projections -----------------------------------------------------------------------
-- Goals, descriptions and summaries are content: rows name the version of the event that
-- holds them. Rows of ended frames stay; `status` tells live ones.

CREATE TABLE frames (
    tenant              INTEGER NOT NULL,
    stream              INTEGER NOT NULL,
    frame_id            BLOB NOT NULL,
    parent_frame_id     BLOB,
    depth               INTEGER NOT NULL,
    status              TEXT NOT NULL,
    granted             INTEGER,
    used                INTEGER NOT NULL,
    reserved            INTEGER NOT NULL,
    lent                INTEGER NOT NULL,
    input_tokens        INTEGER NOT NULL,
    cached_input_tokens INTEGER NOT NULL,
    cache_write_tokens  INTEGER NOT NULL,
    output_tokens       INTEGER NOT NULL,
    reasoning_tokens    INTEGER NOT NULL,
    cost                INTEGER NOT NULL,
    unpriced_tokens     INTEGER NOT NULL,
    estimated_tokens    INTEGER NOT NULL,
    tool_calls          INTEGER NOT NULL,
    max_context_tokens  INTEGER NOT NULL,
    max_tool_calls      INTEGER NOT NULL,
    max_subframe_depth  INTEGER NOT NULL,
    timeout_ms          INTEGER,
    deadline            INTEGER,
    stopped_at          INTEGER,
    created_at          INTEGER NOT NULL,
    completed_at        INTEGER,
    pushed_version      INTEGER NOT NULL,
    goal_version        INTEGER NOT NULL,
    version             INTEGER NOT NULL,
    error_version       INTEGER,
    context_hash        BLOB,
    outer_frame_id      BLOB,
    outer_stream        TEXT,
    PRIMARY KEY (tenant, frame_id),
    FOREIGN KEY (tenant, stream) REFERENCES streams (tenant, id),
    FOREIGN KEY (tenant, parent_frame_id) REFERENCES frames (tenant, frame_id)
) STRICT, WITHOUT ROWID;

-- An actor's frames are its stream's. Only live ones are looked for: ended ones cost nothing here.
CREATE INDEX idx_frames_actor ON frames (tenant, stream) WHERE status IN ('active', 'waiting', 'suspended');
-- Active frames are found by stream; leaving them out of the index by status saves a page per push.
CREATE INDEX idx_frames_status ON frames (tenant, status) WHERE status IN ('waiting', 'suspended');
CREATE INDEX idx_frames_parent ON frames (tenant, parent_frame_id) WHERE parent_frame_id IS NOT NULL;

-- `removed` names the act that detached a handle: detaching is reversible.
CREATE TABLE frame_handles (
    tenant           INTEGER NOT NULL,
    stream           INTEGER NOT NULL,
    frame_id         BLOB NOT NULL,
    handle_id        TEXT NOT NULL,
    handle_type      TEXT NOT NULL,
    priority         INTEGER NOT NULL,
    position         INTEGER NOT NULL,
    estimated_tokens INTEGER,
    version          INTEGER NOT NULL,
    removed          TEXT,
    PRIMARY KEY (tenant, frame_id, handle_id),
    FOREIGN KEY (tenant, frame_id) REFERENCES frames (tenant, frame_id) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;

CREATE INDEX idx_handles_frame ON frame_handles (tenant, frame_id, position);

CREATE TABLE frame_results (
    tenant      INTEGER NOT NULL,
    stream      INTEGER NOT NULL,
    frame_id    BLOB NOT NULL,
    position    INTEGER NOT NULL,
    result_type TEXT NOT NULL,
    ref_id      TEXT NOT NULL,
    version     INTEGER NOT NULL,
    PRIMARY KEY (tenant, frame_id, position),
    FOREIGN KEY (tenant, frame_id) REFERENCES frames (tenant, frame_id) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;

CREATE INDEX idx_results_frame ON frame_results (tenant, frame_id, result_type);

CREATE TABLE frame_reservations (
    tenant   INTEGER NOT NULL,
    stream   INTEGER NOT NULL,
    frame_id BLOB NOT NULL,
    purpose  TEXT NOT NULL,
    amount   INTEGER NOT NULL,
    PRIMARY KEY (tenant, frame_id, purpose),
    FOREIGN KEY (tenant, frame_id) REFERENCES frames (tenant, frame_id) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;

-- Intents without an outcome.
CREATE TABLE frame_calls (
    tenant         INTEGER NOT NULL,
    stream         INTEGER NOT NULL,
    frame_id       BLOB NOT NULL,
    call_id        BLOB NOT NULL,
    kind           TEXT NOT NULL,
    name           TEXT,
    if_interrupted TEXT NOT NULL,
    version        INTEGER NOT NULL,
    PRIMARY KEY (tenant, frame_id, call_id),
    FOREIGN KEY (tenant, frame_id) REFERENCES frames (tenant, frame_id) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;

-- Live children in other streams.
CREATE TABLE frame_children (
    tenant         INTEGER NOT NULL,
    stream         INTEGER NOT NULL,
    frame_id       BLOB NOT NULL,
    child_frame_id BLOB NOT NULL,
    child_stream   TEXT NOT NULL,
    PRIMARY KEY (tenant, frame_id, child_frame_id),
    FOREIGN KEY (tenant, frame_id) REFERENCES frames (tenant, frame_id) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;

-- One live suspension per frame. `token_id` is the hash of a link token, never the token.
CREATE TABLE suspended_frames (
    tenant         INTEGER NOT NULL,
    stream         INTEGER NOT NULL,
    frame_id       BLOB NOT NULL,
    question_id    BLOB NOT NULL,
    kind           TEXT NOT NULL,
    prior          TEXT NOT NULL,
    version        INTEGER NOT NULL,
    suspended_at   INTEGER NOT NULL,
    released       INTEGER NOT NULL,
    expires_at     INTEGER,
    on_expiry      TEXT,
    until          INTEGER,
    token_id       BLOB,
    within         BLOB,
    call_id        BLOB,
    answer_version INTEGER,
    PRIMARY KEY (tenant, frame_id),
    UNIQUE (tenant, question_id),
    FOREIGN KEY (tenant, frame_id) REFERENCES frames (tenant, frame_id) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX suspended_frames_token ON suspended_frames (tenant, token_id) WHERE token_id IS NOT NULL;

CREATE TABLE artifact_refs (
    tenant         INTEGER NOT NULL,
    stream         INTEGER NOT NULL,
    artifact       BLOB NOT NULL,
    stream_version INTEGER NOT NULL,
    PRIMARY KEY (tenant, artifact, stream_version, stream),
    FOREIGN KEY (tenant, artifact) REFERENCES artifacts (tenant, name)
) STRICT, WITHOUT ROWID;

CREATE INDEX artifact_refs_event ON artifact_refs (tenant, stream, stream_version);

-- Sessions and conversations. Texts are content; rows name the version of the event that holds them.
CREATE TABLE sessions (
    tenant           INTEGER NOT NULL,
    stream           INTEGER NOT NULL,
    status           TEXT NOT NULL,
    generation       INTEGER NOT NULL,
    opened_at        INTEGER NOT NULL,
    opened_version   INTEGER NOT NULL,
    model            TEXT,
    tokenizer        TEXT,
    tools            BLOB,
    idle_timeout_ms  INTEGER,
    memory           TEXT,
    system_version   INTEGER,
    title_version    INTEGER,
    metadata_version INTEGER,
    PRIMARY KEY (tenant, stream),
    FOREIGN KEY (tenant, stream) REFERENCES streams (tenant, id)
) STRICT, WITHOUT ROWID;

CREATE INDEX idx_sessions_idle ON sessions (tenant, stream) WHERE status = 'open' AND idle_timeout_ms IS NOT NULL;

CREATE TABLE session_threads (
    tenant  INTEGER NOT NULL,
    stream  INTEGER NOT NULL,
    thread  TEXT NOT NULL,
    version INTEGER NOT NULL,
    PRIMARY KEY (tenant, stream, thread)
) STRICT, WITHOUT ROWID;

-- Conversations that ended and that memory has not taken yet.
CREATE TABLE session_handovers (
    tenant      INTEGER NOT NULL,
    stream      INTEGER NOT NULL,
    handover_id BLOB NOT NULL,
    version     INTEGER NOT NULL,
    attempts    INTEGER NOT NULL,
    PRIMARY KEY (tenant, handover_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX idx_handovers_session ON session_handovers (tenant, stream);

-- One line of a conversation: where it stands. `shared` is what a branch has in common with others, as JSON.
CREATE TABLE threads (
    tenant              INTEGER NOT NULL,
    stream              INTEGER NOT NULL,
    messages            INTEGER NOT NULL,
    newest              INTEGER NOT NULL,
    newest_at           INTEGER NOT NULL,
    floor               INTEGER NOT NULL,
    edited              INTEGER NOT NULL,
    generation          INTEGER NOT NULL,
    packed              INTEGER NOT NULL,
    private             INTEGER NOT NULL,
    ended               INTEGER NOT NULL,
    fresh               INTEGER NOT NULL,
    shared              TEXT,
    input_tokens        INTEGER NOT NULL,
    cached_input_tokens INTEGER NOT NULL,
    cache_write_tokens  INTEGER NOT NULL,
    output_tokens       INTEGER NOT NULL,
    reasoning_tokens    INTEGER NOT NULL,
    cost                INTEGER NOT NULL,
    unpriced_tokens     INTEGER NOT NULL,
    estimated_tokens    INTEGER NOT NULL,
    PRIMARY KEY (tenant, stream),
    FOREIGN KEY (tenant, stream) REFERENCES streams (tenant, id)
) STRICT, WITHOUT ROWID;

CREATE INDEX idx_threads_activity ON threads (tenant, newest_at, stream) WHERE private = 0;

-- `round` is the version of the message that its round begins with; `retracted` that of the retraction;
-- `before` leads over messages that had been retracted when this one was appended.
CREATE TABLE messages (
    tenant    INTEGER NOT NULL,
    stream    INTEGER NOT NULL,
    version   INTEGER NOT NULL,
    position  INTEGER NOT NULL,
    role      TEXT NOT NULL,
    round     INTEGER NOT NULL,
    before    INTEGER,
    calls     INTEGER NOT NULL,
    tokens    INTEGER,
    tokenizer TEXT,
    pinned    INTEGER NOT NULL,
    retracted INTEGER,
    PRIMARY KEY (tenant, stream, version)
) STRICT, WITHOUT ROWID;

CREATE INDEX idx_messages_pinned ON messages (tenant, stream, version) WHERE pinned = 1;

-- Tool calls that wait for their results.
CREATE TABLE message_calls (
    tenant   INTEGER NOT NULL,
    stream   INTEGER NOT NULL,
    call_id  BLOB NOT NULL,
    version  INTEGER NOT NULL,
    provider TEXT,
    PRIMARY KEY (tenant, stream, call_id)
) STRICT, WITHOUT ROWID;

-- Counts by further tokenizers, made when they were first needed.
CREATE TABLE message_counts (
    tenant    INTEGER NOT NULL,
    stream    INTEGER NOT NULL,
    tokenizer TEXT NOT NULL,
    version   INTEGER NOT NULL,
    tokens    INTEGER NOT NULL,
    PRIMARY KEY (tenant, stream, tokenizer, version)
) STRICT, WITHOUT ROWID;

-- `retired` is the version at which a summary was replaced or what it covers was retracted.
CREATE TABLE summaries (
    tenant     INTEGER NOT NULL,
    stream     INTEGER NOT NULL,
    version    INTEGER NOT NULL,
    summary_id BLOB NOT NULL,
    first      INTEGER NOT NULL,
    last       INTEGER NOT NULL,
    shared     TEXT,
    tokens     INTEGER,
    tokenizer  TEXT,
    flushed    TEXT,
    retired    INTEGER,
    PRIMARY KEY (tenant, stream, version)
) STRICT, WITHOUT ROWID;

-- Entries of scoped state: which event holds the value. History names every event that changed a key.
CREATE TABLE state (
    tenant     INTEGER NOT NULL,
    stream     INTEGER NOT NULL,
    key        TEXT NOT NULL,
    version    INTEGER NOT NULL,
    expires_at INTEGER,
    lifetime   TEXT,
    PRIMARY KEY (tenant, stream, key)
) STRICT, WITHOUT ROWID;

-- Only entries that end have a place in it.
CREATE INDEX idx_state_expiry ON state (tenant, expires_at) WHERE expires_at IS NOT NULL;

CREATE TABLE state_history (
    tenant  INTEGER NOT NULL,
    stream  INTEGER NOT NULL,
    key     TEXT NOT NULL,
    version INTEGER NOT NULL,
    PRIMARY KEY (tenant, stream, key, version)
) STRICT, WITHOUT ROWID;

CREATE TABLE edges (
    tenant       INTEGER NOT NULL,
    stream       INTEGER NOT NULL,
    source       TEXT NOT NULL,
    kind         TEXT NOT NULL,
    target_scope TEXT NOT NULL,
    target       TEXT NOT NULL,
    version      INTEGER NOT NULL,
    PRIMARY KEY (tenant, stream, source, kind, target_scope, target)
) STRICT, WITHOUT ROWID;

CREATE INDEX idx_edges_target ON edges (tenant, target_scope, target, kind);

-- Declared effects that are not settled. A lane is the effects of one stream for one sink, in order of version.
CREATE TABLE effects (
    tenant    INTEGER NOT NULL,
    stream    INTEGER NOT NULL,
    effect_id BLOB NOT NULL,
    sink      TEXT NOT NULL,
    kind      TEXT NOT NULL,
    status    TEXT NOT NULL,
    version   INTEGER NOT NULL,
    attempts  INTEGER NOT NULL,
    retry_at  INTEGER,
    settled   INTEGER,
    PRIMARY KEY (tenant, effect_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX idx_effects_lane ON effects (tenant, sink, stream, version);

-- Every live frame with its root: a waiting parent does not hide its active child, also if that is in another stream.
CREATE VIEW active_frame_stacks AS
WITH RECURSIVE stack AS (
    SELECT tenant, stream, frame_id, parent_frame_id, status, 0 AS depth, frame_id AS root_frame_id
    FROM frames
    WHERE parent_frame_id IS NULL AND outer_frame_id IS NULL AND status IN ('active', 'waiting', 'suspended')
    UNION ALL
    SELECT f.tenant, f.stream, f.frame_id, f.parent_frame_id, f.status, s.depth + 1, s.root_frame_id
    FROM frames AS f
    JOIN stack AS s ON f.tenant = s.tenant AND f.parent_frame_id = s.frame_id
    WHERE f.status IN ('active', 'waiting', 'suspended')
    UNION ALL
    SELECT f.tenant, f.stream, f.frame_id, f.outer_frame_id, f.status, s.depth + 1, s.root_frame_id
    FROM stack AS s
    JOIN frame_children AS c ON c.tenant = s.tenant AND c.frame_id = s.frame_id
    JOIN frames AS f ON f.tenant = c.tenant AND f.frame_id = c.child_frame_id
    WHERE f.status IN ('active', 'waiting', 'suspended')
)
SELECT tenant, stream, frame_id, parent_frame_id, status, depth, root_frame_id FROM stack;
