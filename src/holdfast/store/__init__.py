"""Backends of state, each named for what one installs."""
