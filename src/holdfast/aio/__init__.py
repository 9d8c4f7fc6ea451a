"""The same for asyncio: one crossing into a thread per operation. A test compares both signatures."""
