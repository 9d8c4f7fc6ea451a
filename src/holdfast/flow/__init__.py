"""Flows: one plain synchronous function per operation, on ports. Load, decide, append, fold."""
