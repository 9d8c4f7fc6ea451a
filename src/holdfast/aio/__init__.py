"""The asyncio client: the same API, with one crossing into a thread per operation. A test compares both signatures."""
