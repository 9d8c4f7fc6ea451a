"""Backends of the journal, named for their technology. They do not know each other."""
