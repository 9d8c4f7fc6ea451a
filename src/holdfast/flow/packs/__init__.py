"""Packs: build the context of a model call, journal it, rebuild it later, and explain what it shows."""
