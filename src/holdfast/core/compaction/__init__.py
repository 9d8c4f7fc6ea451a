"""Compaction: choose what goes when something is made smaller, and the words that stand in its place."""
