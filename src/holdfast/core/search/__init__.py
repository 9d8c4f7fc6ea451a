"""Which words are looked for, what can be found, and in which order."""
