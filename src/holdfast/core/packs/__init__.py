"""Packing, pure: candidates and a budget in, segments and reasons out. Nothing here reads, writes or asks the time.

`rounds` and `segments` hold what can be shown, and its shorter forms; `window` chooses where a conversation begins;
`fit` goes through the levels until everything fits; `manifest` records the origin of each piece.
"""
