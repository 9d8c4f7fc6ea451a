"""Flows: one plain sync function per operation, on ports. Load, decide, append, fold."""
