"""Backends of the journal, named for their technology. They do not import each other."""
