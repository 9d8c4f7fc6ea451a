"""The journal in memory: the specification that runs, and the fastest journal for tests."""
