"""Frames: pushed, worked in, asked about, owned, swept, ended."""
