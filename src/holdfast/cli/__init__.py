"""The command line. Thin: it opens a journal, calls what everybody can call, and prints the answer."""
