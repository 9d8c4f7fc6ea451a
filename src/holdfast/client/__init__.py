"""Holdfast and what it hands out: sessions, turns, frames, packs, state. Thin: each method names a flow."""
