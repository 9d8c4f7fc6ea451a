"""Compaction of threads and frames, and the rules that trigger it."""
