"""Operators and declared effects: run once, delivered in order, settled by people."""
