"""Entries and edges: written, read, and searched by words, meaning and edges, over any store."""
