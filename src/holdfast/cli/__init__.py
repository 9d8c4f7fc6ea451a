"""The command line: a thin layer that opens a journal, calls the public API, and prints the answer."""
