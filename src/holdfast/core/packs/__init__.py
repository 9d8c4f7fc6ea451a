"""Packing, pure: candidates and a budget in, segments and reasons out. Nothing here reads, writes or asks the time.

`rounds` and `items` are what can be shown and how short it can get; `window` says where a conversation begins;
`fitting` goes through the levels until all of it fits; `pieces` says where everything came from.
"""
