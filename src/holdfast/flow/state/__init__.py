"""Entries and edges: kept, found by words, meaning and edges, over any store."""
