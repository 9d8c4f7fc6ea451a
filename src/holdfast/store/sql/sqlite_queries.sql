-- Every statement of the SQLite store. Values are bound; no caller's text is in any of them.

-- name: get
SELECT version, written_at, expires_at, tier, lifetime, content_kind, salience, schema, embedder, applied,
       value, vector, words
FROM entries
WHERE scope = (SELECT id FROM scopes WHERE name = ?1) AND key = ?2

-- name: page
-- The range is made from prefix and key above: a comparison that is not one of the range would be tried for every row.
SELECT key, version, written_at, expires_at, tier, lifetime, content_kind, salience, schema, embedder, applied,
       value, vector, words
FROM entries INDEXED BY idx_entries_key
WHERE scope = (SELECT id FROM scopes WHERE name = ?1) AND key >= ?2 AND key < ?3
      AND (expires_at IS NULL OR expires_at > ?4)
ORDER BY key LIMIT ?5

-- name: page_of_lifetime
SELECT key, version, written_at, expires_at, tier, lifetime, content_kind, salience, schema, embedder, applied,
       value, vector, words
FROM entries INDEXED BY idx_entries_lifetime
WHERE scope = (SELECT id FROM scopes WHERE name = ?1) AND key >= ?2 AND key < ?3
      AND (expires_at IS NULL OR expires_at > ?4) AND lifetime = ?6
ORDER BY key LIMIT ?5

-- name: found
SELECT e.id, e.key, e.version, e.written_at, e.expires_at, e.tier, e.lifetime, e.content_kind, e.salience, e.schema,
       e.embedder, e.applied, e.value, e.vector, e.words
FROM json_each(?1) AS wanted CROSS JOIN entries AS e ON e.id = wanted.value
WHERE e.scope = ?2 AND (e.expires_at IS NULL OR e.expires_at > ?3)

-- name: live
SELECT e.id
FROM json_each(?1) AS wanted CROSS JOIN entries AS e ON e.id = wanted.value
WHERE e.expires_at IS NULL OR e.expires_at > ?2

-- name: known
-- What a write must know of the entry that it replaces.
SELECT id, version, words, length(vector), embedder
FROM entries
WHERE scope = (SELECT id FROM scopes WHERE name = ?1) AND key = ?2

-- name: scope
SELECT id, newest, reset FROM scopes WHERE name = ?1

-- name: count_on
-- The next version of a scope, which is made if need be. With ?2 a vector of before is no longer there.
INSERT INTO scopes (name, newest, reset)
VALUES (?1, (SELECT newest + 1 FROM gone), (SELECT newest + 1 FROM gone))
ON CONFLICT (name) DO UPDATE SET newest = newest + 1, reset = iif(?2, newest + 1, reset)
RETURNING id, newest

-- name: insert
INSERT INTO entries (scope, key, version, written_at, expires_at, tier, lifetime, content_kind, salience, schema,
                     embedder, applied, value, vector, words)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
RETURNING id

-- name: update
UPDATE entries
SET version = ?2, written_at = ?3, expires_at = ?4, tier = ?5, lifetime = ?6, content_kind = ?7, salience = ?8,
    schema = ?9, embedder = ?10, applied = ?11, value = ?12, vector = ?13, words = ?14
WHERE id = ?1

-- name: delete
DELETE FROM entries WHERE id = ?1

-- name: forget_scope
-- A scope without entries leaves no name behind.
DELETE FROM scopes
WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM entries WHERE scope = ?1)
RETURNING newest

-- name: remember_newest
UPDATE gone SET newest = max(newest, ?1)

-- name: expired
SELECT e.id, s.name, e.vector IS NOT NULL
FROM entries AS e INDEXED BY idx_entries_expiry JOIN scopes AS s ON s.id = e.scope
WHERE e.expires_at <= ?1
ORDER BY e.expires_at LIMIT ?2

-- name: count_expired
SELECT count(*) FROM entries INDEXED BY idx_entries_expiry WHERE expires_at <= ?1 AND scope = ?2

-- name: vectors
SELECT id, expires_at, vector
FROM entries INDEXED BY idx_entries_vector
WHERE scope = ?1 AND version > ?2 AND vector IS NOT NULL AND embedder = ?3 AND length(vector) = ?4

-- name: link
INSERT INTO edges (scope, source, kind, target_scope, target, weight, data)
VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (scope, source, kind, target_scope, target)
DO UPDATE SET weight = excluded.weight, data = excluded.data

-- name: unlink
DELETE FROM edges
WHERE scope = ? AND source = ? AND kind = ? AND target_scope = ? AND target = ?
RETURNING 1

-- name: edges_out
SELECT e.scope, e.source, e.kind, e.target_scope, e.target, e.weight, e.data
FROM json_each(?2) AS wanted CROSS JOIN edges AS e ON e.source = wanted.value
WHERE e.scope = ?1 AND (?3 IS NULL OR e.kind IN (SELECT value FROM json_each(?3)))
ORDER BY e.scope, e.source, e.kind, e.target_scope, e.target LIMIT ?4

-- name: edges_in
SELECT e.scope, e.source, e.kind, e.target_scope, e.target, e.weight, e.data
FROM json_each(?2) AS wanted CROSS JOIN edges AS e INDEXED BY idx_edges_target ON e.target = wanted.value
WHERE e.target_scope = ?1 AND (?3 IS NULL OR e.kind IN (SELECT value FROM json_each(?3)))
ORDER BY e.scope, e.source, e.kind, e.target_scope, e.target LIMIT ?4
