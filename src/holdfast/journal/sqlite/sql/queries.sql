-- Every fixed statement of the SQLite backend, by name. Values are always bound.

-- name: wanted_heads
-- What the whole group needs to know: for each part in the JSON array [[tenant, stream, key], …]
-- its stream's head and the event that its key stands for.
SELECT j.key, t.id, s.id, s.version, s.head, s.epoch, s.holder, s.lease_ms, s.closed, k.version,
    (SELECT max(seq) FROM events), (SELECT max(id) FROM streams), (SELECT value FROM meta WHERE name = 'secret')
FROM json_each(?) AS j
LEFT JOIN tenants AS t ON t.name = j.value ->> 0
LEFT JOIN streams AS s ON s.tenant = t.id AND s.name = j.value ->> 1
LEFT JOIN events AS k ON k.tenant = t.id AND k.stream = s.id AND k.key = j.value ->> 2

-- name: insert_tenant
INSERT INTO tenants (id, name) VALUES (?, ?)

-- name: insert_stream
INSERT INTO streams (id, tenant, name, actor_id, session_id, thread_id, version, head, epoch, holder, lease_ms, closed)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: update_stream
UPDATE streams SET version = ?, head = ?, epoch = ?, holder = ?, lease_ms = ?, closed = ? WHERE tenant = ? AND id = ?

-- name: insert_event
INSERT INTO events (seq, tenant, stream, version, event_id, timestamp, event_type, schema, key, rest, epoch, origin,
    trust, user_id, subject, causation, correlation, app, facts, content, salt, digest, mac, hash)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: tenant_ids
SELECT name, id FROM tenants

-- name: find_subjects
SELECT j.value, s.id FROM json_each(?) AS j LEFT JOIN subjects AS s ON s.tenant = ? AND s.name = j.value

-- name: next_subject
SELECT coalesce(max(id), 0) + 1 FROM subjects WHERE tenant = ?

-- name: insert_subject
INSERT INTO subjects (tenant, id, name, digest) VALUES (?, ?, ?, ?)

-- name: put_artifact
INSERT INTO artifacts (tenant, name, size, placed_at, file, erased, body, digest)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, holdfast_row(?2, ?3, ?4, ?5, ?6))
-- The same name is the same content, so a body that is there stays as it is, in the row or in a file.
ON CONFLICT (tenant, name) DO UPDATE
SET body = CASE WHEN erased = 1 THEN excluded.body ELSE body END, file = max(file, excluded.file),
    erased = excluded.erased, size = excluded.size,
    digest = holdfast_row(name, excluded.size, placed_at, max(file, excluded.file), excluded.erased)

-- name: head
SELECT s.id, s.version, s.head, s.epoch, s.holder, s.lease_ms, s.closed
FROM streams AS s JOIN tenants AS t ON t.id = s.tenant
WHERE t.name = ? AND s.name = ?

-- name: heads
SELECT s.id, s.name, s.version, s.head, s.epoch, s.holder, s.lease_ms, s.closed
FROM streams AS s JOIN tenants AS t ON t.id = s.tenant
WHERE t.name = ? AND s.name > ? ORDER BY s.name LIMIT ?

-- name: live_frames
SELECT * FROM frames INDEXED BY idx_frames_actor
WHERE tenant = ? AND stream = ? AND status IN ('active', 'waiting', 'suspended')

-- name: live_heads
-- In the order of the index of live frames, so that no page looks at what another one gives.
SELECT s.id, s.name, s.version, s.head, s.epoch, s.holder, s.lease_ms, s.closed
FROM frames AS f INDEXED BY idx_frames_actor CROSS JOIN streams AS s ON s.id = f.stream
WHERE f.tenant = (SELECT id FROM tenants WHERE name = ?1) AND f.status IN ('active', 'waiting', 'suspended')
    AND f.stream > ?2
GROUP BY f.stream ORDER BY f.stream LIMIT ?3

-- name: live_tenants
SELECT t.name FROM tenants AS t WHERE EXISTS (
    SELECT 1 FROM frames AS f INDEXED BY idx_frames_actor
    WHERE f.tenant = t.id AND f.status IN ('active', 'waiting', 'suspended')
)

-- name: heads_by_name
SELECT s.id, s.name, s.version, s.head, s.epoch, s.holder, s.lease_ms, s.closed FROM json_each(?2) AS j
CROSS JOIN streams AS s ON s.tenant = (SELECT id FROM tenants WHERE name = ?1) AND s.name = j.value

-- name: renew_lease
-- Only whoever owns the stream under this epoch gives signs of life; counts what it changed.
INSERT INTO leases (tenant, stream, renewals, digest)
SELECT s.tenant, s.id, 1, holdfast_row(s.tenant, s.id, 1)
FROM streams AS s JOIN tenants AS t ON t.id = s.tenant
WHERE t.name = ?1 AND s.name = ?2 AND s.epoch = ?3 AND s.holder IS NOT NULL
ON CONFLICT (tenant, stream) DO UPDATE
SET renewals = renewals + 1, digest = holdfast_row(tenant, stream, renewals + 1)

-- name: renewals
SELECT l.renewals FROM leases AS l
JOIN streams AS s ON s.id = l.stream JOIN tenants AS t ON t.id = s.tenant
WHERE t.name = ? AND s.name = ?

-- name: changed_leases
SELECT t.name, s.name FROM leases AS l
LEFT JOIN streams AS s ON s.id = l.stream LEFT JOIN tenants AS t ON t.id = s.tenant
WHERE l.digest <> holdfast_row(l.tenant, l.stream, l.renewals)

-- name: frame_parts
-- Everything that hangs on the frames in the JSON array of hex ids, table by table.
SELECT * FROM frame_handles WHERE tenant = ?1 AND frame_id IN (SELECT unhex(value) FROM json_each(?2));
SELECT * FROM frame_results WHERE tenant = ?1 AND frame_id IN (SELECT unhex(value) FROM json_each(?2));
SELECT * FROM frame_reservations WHERE tenant = ?1 AND frame_id IN (SELECT unhex(value) FROM json_each(?2));
SELECT * FROM frame_calls WHERE tenant = ?1 AND frame_id IN (SELECT unhex(value) FROM json_each(?2));
SELECT * FROM frame_children WHERE tenant = ?1 AND frame_id IN (SELECT unhex(value) FROM json_each(?2));
SELECT * FROM suspended_frames WHERE tenant = ?1 AND frame_id IN (SELECT unhex(value) FROM json_each(?2))

-- name: session_rows
-- What a session is, table by table.
SELECT * FROM sessions WHERE tenant = ?1 AND stream = ?2;
SELECT * FROM session_threads WHERE tenant = ?1 AND stream = ?2;
SELECT * FROM session_handovers WHERE tenant = ?1 AND stream = ?2

-- name: line_rows
SELECT * FROM threads WHERE tenant = ?1 AND stream = ?2;
SELECT * FROM message_calls WHERE tenant = ?1 AND stream = ?2

-- name: idle_sessions
-- Open sessions whose every line has been quiet for as long as their timeout says.
SELECT s.name FROM sessions AS p INDEXED BY idx_sessions_idle
JOIN streams AS s ON s.id = p.stream
WHERE p.tenant = (SELECT id FROM tenants WHERE name = ?1) AND p.status = 'open' AND p.idle_timeout_ms IS NOT NULL
    AND s.name > ?2 AND p.idle_timeout_ms <= ?3 - (
        SELECT max(t.newest_at) FROM streams AS l INDEXED BY idx_frames_session_thread
        JOIN threads AS t ON t.tenant = l.tenant AND t.stream = l.id
        WHERE l.tenant = p.tenant AND l.session_id = s.session_id AND l.thread_id IS NOT NULL
    )
ORDER BY s.name LIMIT ?4

-- name: sessions_by_activity
-- A session stands where its newest line does. Keyset: what is older than (?2, ?3).
-- CROSS JOIN keeps the order of the tables: else every newer line of the tenant is looked at for every session.
SELECT s.name, p.status, p.model, p.opened_at, p.title_version, e.user_id, t.newest_at, t.stream
FROM threads AS t INDEXED BY idx_threads_activity
CROSS JOIN streams AS l ON l.id = t.stream AND l.session_id IS NOT NULL AND l.actor_id IS NULL
CROSS JOIN streams AS s
    ON s.tenant = l.tenant AND s.session_id = l.session_id AND s.thread_id IS NULL AND s.actor_id IS NULL
CROSS JOIN sessions AS p ON p.tenant = s.tenant AND p.stream = s.id
CROSS JOIN events AS e ON e.tenant = s.tenant AND e.stream = s.id AND e.version = p.opened_version
WHERE t.tenant = (SELECT id FROM tenants WHERE name = ?1) AND t.private = 0 AND (t.newest_at, t.stream) < (?2, ?3)
    AND ?5 IS NULL AND (?6 IS NULL OR p.status = ?6)
    AND NOT EXISTS (
        SELECT 1 FROM streams AS o INDEXED BY idx_frames_session_thread
        CROSS JOIN threads AS n ON n.tenant = o.tenant AND n.stream = o.id
        WHERE o.tenant = l.tenant AND o.session_id = l.session_id AND o.actor_id IS NULL
            AND (n.newest_at, n.stream) > (t.newest_at, t.stream)
    )
ORDER BY t.newest_at DESC, t.stream DESC LIMIT ?4

-- name: sessions_of_user
-- The same for the sessions that one user opened: the cost follows these and not all others.
SELECT s.name, p.status, p.model, p.opened_at, p.title_version, e.user_id, t.newest_at, t.stream
FROM events AS e INDEXED BY events_opened
CROSS JOIN sessions AS p ON p.tenant = e.tenant AND p.stream = e.stream AND p.opened_version = e.version
CROSS JOIN streams AS s ON s.id = e.stream
CROSS JOIN streams AS l INDEXED BY idx_frames_session_thread
    ON l.tenant = s.tenant AND l.session_id = s.session_id AND l.actor_id IS NULL
CROSS JOIN threads AS t ON t.tenant = l.tenant AND t.stream = l.id
WHERE e.tenant = (SELECT id FROM tenants WHERE name = ?1) AND e.event_type = 'session.opened'
    AND e.user_id = (SELECT u.id FROM subjects AS u JOIN tenants AS k ON k.id = u.tenant WHERE k.name = ?1 AND u.name = ?5)
    AND (t.newest_at, t.stream) < (?2, ?3) AND (?6 IS NULL OR p.status = ?6)
    AND NOT EXISTS (
        SELECT 1 FROM streams AS o INDEXED BY idx_frames_session_thread
        CROSS JOIN threads AS n ON n.tenant = o.tenant AND n.stream = o.id
        WHERE o.tenant = l.tenant AND o.session_id = l.session_id AND o.actor_id IS NULL
            AND (n.newest_at, n.stream) > (t.newest_at, t.stream)
    )
ORDER BY t.newest_at DESC, t.stream DESC LIMIT ?4

-- name: session_lines
-- Every line of a session, for its totals.
SELECT t.messages, t.input_tokens, t.cached_input_tokens, t.cache_write_tokens, t.output_tokens, t.reasoning_tokens,
    t.cost, t.unpriced_tokens, t.estimated_tokens
FROM streams AS l INDEXED BY idx_frames_session_thread JOIN threads AS t ON t.tenant = l.tenant AND t.stream = l.id
WHERE l.tenant = (SELECT id FROM tenants WHERE name = ?1) AND l.session_id = ?2 AND l.actor_id IS NULL

-- name: events_of_stream
SELECT e.* FROM events AS e
WHERE e.tenant = (SELECT id FROM tenants WHERE name = ?1)
    AND e.stream = (SELECT s.id FROM streams AS s JOIN tenants AS t ON t.id = s.tenant WHERE t.name = ?1 AND s.name = ?2)
    AND e.version > ?3 AND e.version <= ?4
    AND (?5 IS NULL OR e.event_type IN (SELECT value FROM json_each(?5)))
ORDER BY e.version LIMIT ?6

-- name: events_of_stream_backwards
SELECT e.* FROM events AS e
WHERE e.tenant = (SELECT id FROM tenants WHERE name = ?1)
    AND e.stream = (SELECT s.id FROM streams AS s JOIN tenants AS t ON t.id = s.tenant WHERE t.name = ?1 AND s.name = ?2)
    AND e.version > ?3 AND e.version <= ?4
    AND (?5 IS NULL OR e.event_type IN (SELECT value FROM json_each(?5)))
ORDER BY e.version DESC LIMIT ?6

-- name: events_of_tenant
SELECT e.*, s.name FROM events AS e CROSS JOIN streams AS s ON s.id = e.stream
WHERE e.tenant = ?1 AND e.seq > ?3 AND e.seq <= ?4
    AND (?5 IS NULL OR e.event_type IN (SELECT value FROM json_each(?5)))
ORDER BY e.seq LIMIT ?6

-- name: events_of_tenant_backwards
SELECT e.*, s.name FROM events AS e CROSS JOIN streams AS s ON s.id = e.stream
WHERE e.tenant = ?1 AND e.seq > ?3 AND e.seq <= ?4
    AND (?5 IS NULL OR e.event_type IN (SELECT value FROM json_each(?5)))
ORDER BY e.seq DESC LIMIT ?6

-- name: events_of_type
SELECT e.*, s.name FROM events AS e CROSS JOIN streams AS s ON s.id = e.stream
WHERE e.tenant = ?1 AND e.event_type = ?5 AND e.seq > ?3 AND e.seq <= ?4
ORDER BY e.seq LIMIT ?6

-- name: events_of_type_backwards
SELECT e.*, s.name FROM events AS e CROSS JOIN streams AS s ON s.id = e.stream
WHERE e.tenant = ?1 AND e.event_type = ?5 AND e.seq > ?3 AND e.seq <= ?4
ORDER BY e.seq DESC LIMIT ?6

-- name: event_by_key
SELECT e.* FROM events AS e
WHERE e.tenant = (SELECT id FROM tenants WHERE name = ?1)
    AND e.stream = (SELECT s.id FROM streams AS s JOIN tenants AS t ON t.id = s.tenant WHERE t.name = ?1 AND s.name = ?2)
    AND e.key = ?3

-- name: event_by_id
SELECT stream, version FROM events WHERE tenant = ? AND event_id = ?

-- name: events_between
SELECT * FROM events WHERE tenant = ? AND stream = ? AND version BETWEEN ? AND ? ORDER BY version

-- name: streams_after
SELECT tenant, id, version FROM streams WHERE id IN (SELECT stream FROM events WHERE seq > ?)

-- name: events_after
SELECT e.*, s.name, t.name FROM events AS e
CROSS JOIN streams AS s ON s.id = e.stream CROSS JOIN tenants AS t ON t.id = e.tenant
WHERE e.seq > ? AND e.seq <= ? ORDER BY e.seq LIMIT ?

-- name: position
SELECT coalesce(max(seq), 0) FROM events

-- name: get_artifact
SELECT a.file, a.erased, a.body FROM artifacts AS a JOIN tenants AS t ON t.id = a.tenant
WHERE t.name = ? AND a.name = ?

-- name: artifact_beginning
SELECT t.name, a.file, a.erased, substr(a.body, 1, ?3) FROM artifacts AS a CROSS JOIN tenants AS t ON t.id = a.tenant
WHERE a.tenant = ?1 AND a.name = ?2

-- name: all_artifacts
SELECT t.name, a.name, a.size, a.placed_at, a.file, a.erased, a.body
FROM artifacts AS a JOIN tenants AS t ON t.id = a.tenant
WHERE (a.tenant, a.name) > (?, ?) ORDER BY a.tenant, a.name LIMIT 1

-- name: changed_artifacts
SELECT t.name, a.name FROM artifacts AS a JOIN tenants AS t ON t.id = a.tenant
WHERE a.digest <> holdfast_row(a.name, a.size, a.placed_at, a.file, a.erased)

-- name: artifact_files
SELECT t.name, a.tenant, a.name FROM artifacts AS a JOIN tenants AS t ON t.id = a.tenant WHERE a.file = 1 AND a.erased = 0

-- name: unreferred_artifacts
SELECT a.tenant, a.name, a.file FROM artifacts AS a
WHERE a.placed_at < ? AND a.erased = 0
    AND NOT EXISTS (SELECT 1 FROM artifact_refs AS r WHERE r.tenant = a.tenant AND r.artifact = a.name)

-- name: drop_artifact
DELETE FROM artifacts WHERE tenant = ? AND name = ?

-- name: known_artifact
SELECT 1 FROM artifacts AS a JOIN tenants AS t ON t.id = a.tenant WHERE t.name = ? AND a.name = ? AND a.erased = 0

-- name: subjects
SELECT s.id, s.name FROM subjects AS s
WHERE s.tenant = (SELECT id FROM tenants WHERE name = ?) AND s.id BETWEEN ? AND ? ORDER BY s.id

-- name: all_subjects
SELECT t.name, s.id, s.name, s.digest FROM subjects AS s JOIN tenants AS t ON t.id = s.tenant

-- name: subject_events
SELECT seq FROM events WHERE tenant = ? AND subject = ?

-- name: subject_summaries
-- Summaries of a subject's messages, whoever had them made: of its own thread, and of threads that a fork shares.
-- Read from the events: a summary that a pack made has no row.
WITH made AS (
    SELECT seq, stream, CAST(facts AS TEXT) AS facts FROM events WHERE tenant = ?1 AND event_type = 'summary.made'
)
SELECT p.seq, p.facts ->> 'flushed', p.facts ->> 'summary' FROM made AS p
WHERE EXISTS (
    SELECT 1 FROM events AS m WHERE m.tenant = ?1 AND m.stream = p.stream AND m.subject = ?2
        AND m.version BETWEEN p.facts ->> 'first' AND p.facts ->> 'last' AND m.event_type = 'message.appended'
)
UNION
SELECT p.seq, p.facts ->> 'flushed', p.facts ->> 'summary' FROM made AS p
CROSS JOIN json_each(p.facts, '$.shared') AS j
CROSS JOIN streams AS t ON t.tenant = ?1 AND t.name = j.value ->> 0
CROSS JOIN events AS m ON m.tenant = ?1 AND m.stream = t.id AND m.version BETWEEN j.value ->> 1 AND j.value ->> 2
    AND m.subject = ?2 AND m.event_type = 'message.appended'

-- name: subject_compactions
-- Compactions that wrote evidence of a subject to the state.
SELECT DISTINCT c.facts FROM events AS c
CROSS JOIN json_each(CAST(c.facts AS TEXT), '$.sources') AS j
CROSS JOIN streams AS t ON t.tenant = ?1 AND t.name = j.value ->> 0
CROSS JOIN events AS e ON e.tenant = ?1 AND e.stream = t.id AND e.version = j.value ->> 1 AND e.subject = ?2
WHERE c.tenant = ?1 AND c.event_type = 'frame.compacted'

-- name: passages
-- The events that wrote the passages of a compaction: its first key, and those that continue it after a slash.
SELECT e.seq FROM streams AS t
CROSS JOIN state_history AS h ON h.tenant = ?1 AND h.stream = t.id AND h.key >= ?3 AND h.key < ?3 || '0'
CROSS JOIN events AS e ON e.tenant = ?1 AND e.stream = h.stream AND e.version = h.version
WHERE t.tenant = ?1 AND t.name = ?2 AND e.event_type = 'state.written'

-- name: erase_content
UPDATE events SET mac = holdfast_mac(salt, digest), content = NULL, salt = NULL, digest = NULL
WHERE seq IN (SELECT value FROM json_each(?)) AND content IS NOT NULL

-- name: erasable_artifacts
-- Artifacts that only these events refer to.
SELECT DISTINCT a.name, a.file FROM json_each(?2) AS j
CROSS JOIN events AS e ON e.seq = j.value
CROSS JOIN artifact_refs AS r ON r.tenant = e.tenant AND r.stream = e.stream AND r.stream_version = e.version
CROSS JOIN artifacts AS a ON a.tenant = r.tenant AND a.name = r.artifact
WHERE a.tenant = ?1 AND a.erased = 0
    AND NOT EXISTS (
        SELECT 1 FROM artifact_refs AS o
        CROSS JOIN events AS x ON x.tenant = o.tenant AND x.stream = o.stream AND x.version = o.stream_version
        WHERE o.tenant = a.tenant AND o.artifact = a.name AND x.seq NOT IN (SELECT value FROM json_each(?2))
    )

-- name: erase_artifact
UPDATE artifacts SET body = NULL, erased = 1, digest = holdfast_row(name, size, placed_at, file, 1)
WHERE tenant = ? AND name = ?

-- name: unfinished_files
SELECT t.name, a.tenant, a.name FROM artifacts AS a INDEXED BY artifacts_unfinished
JOIN tenants AS t ON t.id = a.tenant WHERE a.erased = 1 AND a.file = 1

-- name: file_gone
UPDATE artifacts SET file = 0, digest = holdfast_row(name, size, placed_at, 0, erased)
WHERE tenant = ? AND name = ?

-- name: erase_subject
UPDATE subjects SET name = NULL, digest = NULL WHERE tenant = ? AND id = ?

-- name: note_erasure
INSERT INTO erasures (tenant, subject, digest, events, artifacts) VALUES (?, ?, ?, ?, ?)

-- name: find_erasure
SELECT subject, events, artifacts FROM erasures WHERE tenant = ? AND digest = ?

-- name: unfinished_erasures
SELECT t.name, e.subject, e.tenant FROM erasures AS e JOIN tenants AS t ON t.id = e.tenant

-- name: erasure_done
DELETE FROM erasures WHERE tenant = ? AND subject = ?

-- name: meta
SELECT name, value, digest FROM meta

-- name: get_meta
SELECT value FROM meta WHERE name = ?

-- name: drop_meta
DELETE FROM meta WHERE name = ?

-- name: insert_meta
INSERT INTO meta (name, value, digest) VALUES (?, ?, ?)

-- name: update_meta
UPDATE meta SET value = ?, digest = ? WHERE name = ?

-- name: entry
SELECT e.* FROM streams AS s
CROSS JOIN state AS p ON p.tenant = s.tenant AND p.stream = s.id AND p.key = ?3
CROSS JOIN events AS e ON e.tenant = p.tenant AND e.stream = p.stream AND e.version = p.version
WHERE s.tenant = (SELECT id FROM tenants WHERE name = ?1) AND s.name = ?2 AND e.content IS NOT NULL

-- name: entries
SELECT e.version, e.timestamp, e.schema, e.facts, e.content, e.salt, e.digest FROM streams AS s
CROSS JOIN state AS p ON p.tenant = s.tenant AND p.stream = s.id AND p.key >= ?3 AND p.key < ?4
CROSS JOIN events AS e ON e.tenant = p.tenant AND e.stream = p.stream AND e.version = p.version
WHERE s.tenant = (SELECT id FROM tenants WHERE name = ?1) AND s.name = ?2 AND e.content IS NOT NULL
    AND (p.expires_at IS NULL OR p.expires_at > ?5) AND (?6 IS NULL OR p.lifetime = ?6)
    AND NOT (?8 AND p.key = ?3)
ORDER BY p.key LIMIT ?7

-- name: revisions
SELECT e.* FROM streams AS s
CROSS JOIN state_history AS p ON p.tenant = s.tenant AND p.stream = s.id AND p.key = ?3 AND p.version < ?4
CROSS JOIN events AS e ON e.tenant = p.tenant AND e.stream = p.stream AND e.version = p.version
WHERE s.tenant = (SELECT id FROM tenants WHERE name = ?1) AND s.name = ?2
ORDER BY p.version DESC LIMIT ?5

-- name: edges_out
SELECT e.*, s.name FROM streams AS s
CROSS JOIN json_each(?3) AS k
CROSS JOIN edges AS p ON p.tenant = s.tenant AND p.stream = s.id AND p.source = k.value
CROSS JOIN events AS e ON e.tenant = p.tenant AND e.stream = p.stream AND e.version = p.version
WHERE s.tenant = (SELECT id FROM tenants WHERE name = ?1) AND s.name = ?2
    AND (?4 IS NULL OR p.kind IN (SELECT value FROM json_each(?4)))
ORDER BY p.source, p.kind, p.target_scope, p.target LIMIT ?5

-- name: edges_in
SELECT e.*, s.name FROM json_each(?3) AS k
CROSS JOIN edges AS p INDEXED BY idx_edges_target
    ON p.tenant = (SELECT id FROM tenants WHERE name = ?1) AND p.target_scope = ?2 AND p.target = k.value
CROSS JOIN streams AS s ON s.id = p.stream
CROSS JOIN events AS e ON e.tenant = p.tenant AND e.stream = p.stream AND e.version = p.version
WHERE ?4 IS NULL OR p.kind IN (SELECT value FROM json_each(?4))
ORDER BY s.name, p.source, p.kind, p.target LIMIT ?5

-- name: linked
SELECT 1 FROM streams AS s
CROSS JOIN edges AS p ON p.tenant = s.tenant AND p.stream = s.id
WHERE s.tenant = (SELECT id FROM tenants WHERE name = ?1) AND s.name = ?2
    AND p.source = ?3 AND p.kind = ?4 AND p.target_scope = ?5 AND p.target = ?6

-- name: expired
SELECT s.name, p.key, p.version FROM state AS p INDEXED BY idx_state_expiry
CROSS JOIN streams AS s ON s.id = p.stream
WHERE p.tenant = (SELECT id FROM tenants WHERE name = ?1) AND p.expires_at <= ?2
ORDER BY p.expires_at LIMIT ?3

-- name: scopes
SELECT s.name FROM streams AS s
WHERE s.tenant = (SELECT id FROM tenants WHERE name = ?1) AND s.name > ?3 AND EXISTS (
    SELECT 1 FROM state AS p
    CROSS JOIN events AS e ON e.tenant = p.tenant AND e.stream = p.stream AND e.version = p.version
    WHERE p.tenant = s.tenant AND p.stream = s.id AND (p.expires_at IS NULL OR p.expires_at > ?2)
        AND e.content IS NOT NULL
)
ORDER BY s.name LIMIT ?4

-- name: lanes
SELECT s.name, p.effect_id, p.sink, p.kind, p.status, p.version, p.attempts, p.retry_at, p.settled
FROM (
    SELECT e.tenant, e.sink, e.stream, min(e.version) AS version FROM effects AS e INDEXED BY idx_effects_lane
    WHERE e.tenant = (SELECT id FROM tenants WHERE name = ?1) AND e.sink BETWEEN ?2 AND ?3
    GROUP BY e.sink, e.stream
) AS l
CROSS JOIN effects AS p INDEXED BY idx_effects_lane
    ON p.tenant = l.tenant AND p.sink = l.sink AND p.stream = l.stream AND p.version = l.version
CROSS JOIN streams AS s ON s.id = p.stream
ORDER BY p.sink, s.name

-- name: message_before
-- What was said before a message when it was said, whatever was retracted since.
SELECT e.content FROM messages AS m
CROSS JOIN events AS e ON e.tenant = m.tenant AND e.stream = m.stream AND e.version = m.version
WHERE m.tenant = ?1 AND m.stream = ?2 AND m.version < ?3 AND (m.retracted IS NULL OR m.retracted > ?3)
ORDER BY m.version DESC LIMIT 1

-- name: entry_before
-- The event that changed a key before this one did.
SELECT e.seq FROM state_history AS h
CROSS JOIN events AS e ON e.tenant = h.tenant AND e.stream = h.stream AND e.version = h.version
WHERE h.tenant = ?1 AND h.stream = ?2 AND h.key = ?3 AND h.version < ?4
ORDER BY h.version DESC LIMIT 1

-- name: stream_ids
SELECT s.id FROM json_each(?2) AS j CROSS JOIN streams AS s ON s.tenant = ?1 AND s.name = j.value

-- name: hits
-- What the index found, with what says whether it still stands.
SELECT e.*, s.name, m.retracted, t.floor, p.version IS NOT NULL, p.expires_at
FROM json_each(?1) AS j
CROSS JOIN events AS e ON e.seq = j.value AND e.tenant = ?2
CROSS JOIN streams AS s ON s.id = e.stream
LEFT JOIN messages AS m ON m.tenant = e.tenant AND m.stream = e.stream AND m.version = e.version
LEFT JOIN threads AS t ON t.tenant = e.tenant AND t.stream = e.stream
LEFT JOIN state AS p ON e.event_type = 'state.written' AND p.tenant = e.tenant AND p.stream = e.stream
    AND p.key = CAST(e.facts AS TEXT) ->> '$.key' AND p.version = e.version

-- name: texts
-- Every message and entry that can be found.
SELECT e.seq FROM messages AS m
CROSS JOIN events AS e ON e.tenant = m.tenant AND e.stream = m.stream AND e.version = m.version
WHERE m.tenant = ?1 AND e.content IS NOT NULL
UNION ALL
SELECT e.seq FROM state AS p
CROSS JOIN events AS e ON e.tenant = p.tenant AND e.stream = p.stream AND e.version = p.version
WHERE p.tenant = ?1 AND e.content IS NOT NULL

-- name: state_version
SELECT version FROM state WHERE tenant = ?1 AND stream = ?2 AND key = ?3

-- name: events_by_seq
SELECT e.*, s.name, t.name FROM json_each(?1) AS j CROSS JOIN events AS e ON e.seq = j.value
CROSS JOIN streams AS s ON s.id = e.stream CROSS JOIN tenants AS t ON t.id = e.tenant

-- name: messages_after
-- Messages that may have been indexed with the end of one of these: up to the next one that stands.
SELECT DISTINCT e.seq FROM json_each(?1) AS j
CROSS JOIN events AS a ON a.seq = j.value AND a.event_type = 'message.appended'
CROSS JOIN messages AS m ON m.tenant = a.tenant AND m.stream = a.stream AND m.version > a.version
    AND m.version <= coalesce((
        SELECT n.version FROM messages AS n
        WHERE n.tenant = a.tenant AND n.stream = a.stream AND n.version > a.version AND n.retracted IS NULL
        ORDER BY n.version LIMIT 1
    ), 9000000000000000000)
CROSS JOIN events AS e ON e.tenant = m.tenant AND e.stream = m.stream AND e.version = m.version

-- name: texts_ever
-- What was ever indexed and was not erased: with the index turned off, what is overwritten stays in it and is passed over.
SELECT seq FROM events
WHERE tenant = ?1 AND event_type IN ('message.appended', 'state.written') AND content IS NOT NULL

-- name: create_text_index
-- The text index follows the events, in segments of all tenants. It holds no text and can be made again. A journal has it
-- once texts were indexed.
-- How far the texts of a tenant are indexed. Erasing and repairing begin another generation.
CREATE TABLE text_cursors (
    tenant     INTEGER PRIMARY KEY REFERENCES tenants (id),
    seq        INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    digest     BLOB NOT NULL
) STRICT;

-- `directory` names the first word of each block, `removed` the texts that are no longer current, `body` is the digest of
-- the blocks and `digest` that of the columns before it.
CREATE TABLE text_segments (
    tenant    INTEGER NOT NULL REFERENCES tenants (id),
    id        INTEGER NOT NULL,
    count     INTEGER NOT NULL,
    directory BLOB NOT NULL,
    removed   BLOB NOT NULL,
    body      BLOB NOT NULL,
    digest    BLOB NOT NULL,
    PRIMARY KEY (tenant, id)
) STRICT, WITHOUT ROWID;

-- A block's id begins with that of its segment.
CREATE TABLE text_blocks (
    id   INTEGER PRIMARY KEY,
    body BLOB NOT NULL
) STRICT

-- name: pending_texts
-- Events with texts that come after a cursor, merged in order from the index by type.
SELECT p.*, s.name, t.name FROM (
    SELECT * FROM (SELECT e.* FROM events AS e INDEXED BY idx_events_type
        WHERE e.tenant = ?1 AND e.event_type = 'message.appended' AND e.seq > ?2 ORDER BY e.seq LIMIT ?3)
    UNION ALL
    SELECT * FROM (SELECT e.* FROM events AS e INDEXED BY idx_events_type
        WHERE e.tenant = ?1 AND e.event_type = 'state.deleted' AND e.seq > ?2 ORDER BY e.seq LIMIT ?3)
    UNION ALL
    SELECT * FROM (SELECT e.* FROM events AS e INDEXED BY idx_events_type
        WHERE e.tenant = ?1 AND e.event_type = 'state.written' AND e.seq > ?2 ORDER BY e.seq LIMIT ?3)
    ORDER BY seq LIMIT ?3
) AS p
CROSS JOIN streams AS s ON s.id = p.stream CROSS JOIN tenants AS t ON t.id = p.tenant

-- name: text_cursor
SELECT seq, generation FROM text_cursors WHERE tenant = ?

-- name: move_text_cursor
INSERT INTO text_cursors (tenant, seq, generation, digest) VALUES (?1, ?2, ?3, holdfast_row(?1, ?2, ?3))
ON CONFLICT (tenant) DO UPDATE SET seq = ?2, generation = ?3, digest = holdfast_row(?1, ?2, ?3)

-- name: changed_text_cursors
SELECT tenant FROM text_cursors WHERE digest <> holdfast_row(tenant, seq, generation)

-- name: text_segments
SELECT id, count, directory, removed, body, digest FROM text_segments WHERE tenant = ? ORDER BY id

-- name: indexed_tenants
SELECT tenant FROM text_segments UNION SELECT tenant FROM text_cursors ORDER BY tenant

-- name: insert_text_segment
INSERT INTO text_segments (tenant, id, count, directory, removed, body, digest)
SELECT ?1, id, ?2, ?3, ?4, ?5, holdfast_row(?1, id, ?2, ?3, ?4, ?5)
FROM (SELECT coalesce(max(id) >> 20, 0) + 1 AS id FROM text_blocks) WHERE true RETURNING id

-- name: drop_text_segment
DELETE FROM text_segments WHERE tenant = ? AND id = ?

-- name: hide_texts
UPDATE text_segments SET removed = ?1, digest = holdfast_row(tenant, id, count, directory, ?1, body)
WHERE tenant = ?2 AND id = ?3

-- name: text_blocks
SELECT b.id, b.body FROM json_each(?1) AS j CROSS JOIN text_blocks AS b ON b.id = j.value

-- name: text_blocks_between
SELECT id, body FROM text_blocks WHERE id >= ? AND id < ? ORDER BY id

-- name: insert_text_block
INSERT INTO text_blocks (id, body) VALUES (?, ?)

-- name: drop_text_blocks
DELETE FROM text_blocks WHERE id >= ? AND id < ?

-- name: create_vectors
CREATE TABLE vectors (
    tenant   INTEGER NOT NULL,
    stream   INTEGER NOT NULL,
    embedder TEXT NOT NULL,
    seq      INTEGER NOT NULL,
    digest   BLOB NOT NULL,
    vector   BLOB NOT NULL,
    PRIMARY KEY (tenant, stream, embedder, seq)
) STRICT, WITHOUT ROWID;
CREATE INDEX idx_vectors_digest ON vectors (tenant, embedder, digest)

-- name: newest_vector
SELECT max(v.seq) FROM streams AS s CROSS JOIN vectors AS v ON v.tenant = s.tenant AND v.stream = s.id
WHERE s.tenant = (SELECT id FROM tenants WHERE name = ?1) AND s.name = ?2 AND v.embedder = ?3

-- name: texts_after
-- Messages and entries of one stream whose events come after another one.
SELECT e.* FROM streams AS s CROSS JOIN events AS e ON e.tenant = s.tenant AND e.stream = s.id
WHERE s.tenant = (SELECT id FROM tenants WHERE name = ?1) AND s.name = ?2
    AND e.version > coalesce((SELECT version FROM events WHERE seq = ?3), 0)
    AND e.content IS NOT NULL AND (e.event_type = 'message.appended' OR (e.event_type = 'state.written' AND EXISTS (
        SELECT 1 FROM state AS p WHERE p.tenant = e.tenant AND p.stream = e.stream
            AND p.key = CAST(e.facts AS TEXT) ->> '$.key' AND p.version = e.version
    )))
ORDER BY e.version LIMIT ?4

-- name: known_vectors
SELECT v.digest, v.vector FROM json_each(?3) AS j
CROSS JOIN vectors AS v INDEXED BY idx_vectors_digest
    ON v.tenant = (SELECT id FROM tenants WHERE name = ?1) AND v.embedder = ?2 AND v.digest = unhex(j.value)

-- name: keep_vector
INSERT INTO vectors (tenant, stream, embedder, seq, digest, vector)
SELECT e.tenant, e.stream, ?3, e.seq, ?5, ?6 FROM events AS e
JOIN streams AS s ON s.id = e.stream JOIN tenants AS t ON t.id = e.tenant
WHERE e.seq = ?4 AND t.name = ?1 AND s.name = ?2 AND e.content IS NOT NULL
ON CONFLICT (tenant, stream, embedder, seq) DO UPDATE SET digest = excluded.digest, vector = excluded.vector

-- name: vectors_after
SELECT v.seq, v.vector FROM streams AS s CROSS JOIN vectors AS v ON v.tenant = s.tenant AND v.stream = s.id
WHERE s.tenant = (SELECT id FROM tenants WHERE name = ?1) AND s.name = ?2 AND v.embedder = ?3 AND v.seq > ?4
ORDER BY v.seq

-- name: drop_vectors
DELETE FROM vectors WHERE tenant = (SELECT id FROM tenants WHERE name = ?1)
    AND (stream, seq) IN (SELECT e.stream, e.seq FROM json_each(?2) AS j JOIN events AS e ON e.seq = j.value)
