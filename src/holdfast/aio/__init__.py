"""The asyncio client: the same API, with one crossing into a thread per operation. A test compares both signatures.

Plain twins (`make_async`, `make_pages`, and methods that only say `See …`) are written by tools/generate_aio.py.
"""
