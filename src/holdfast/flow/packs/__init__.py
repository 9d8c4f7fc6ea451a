"""Packs: what a model call is shown, from where, why, and the same again later."""
