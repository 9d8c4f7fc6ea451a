"""The rules of frames: state + request → events, or a refusal. Pure.

Every function takes the known state and returns drafts; none of them reads, writes or asks for
the time. The result of a rule (a grant, a deadline, the parent to wake) is put into the facts, so
that folding and projecting need no rules.
"""
