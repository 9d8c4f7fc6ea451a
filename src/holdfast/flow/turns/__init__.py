"""Turns: from a user's message to the final reply, one append at a time."""
