"""SQLite as journal and stores share it: connections, a pool, full text search and vectors."""
