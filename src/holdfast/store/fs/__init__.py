"""A store of state in files below one folder."""
