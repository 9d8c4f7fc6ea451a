"""Pure functions from records to records. No I/O, clock, randomness, threads or logging."""
