"""Backends of state, each named for the technology it needs."""
