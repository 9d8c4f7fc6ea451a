"""Nouns: frozen records of plain data. No I/O, no clock, no randomness."""
