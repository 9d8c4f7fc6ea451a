"""The synchronous client: Holdfast and its sessions, turns, frames, packs and state. Thin: each method calls a flow."""
