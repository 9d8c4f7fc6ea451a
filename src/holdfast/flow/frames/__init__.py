"""Frames: push, work, questions, leases, takeover, sweep, end."""
