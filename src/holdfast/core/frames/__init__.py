"""state + request → events, or a refusal. The rules of frames, pure and in one place.

Every function takes what is known and gives drafts; nothing here reads, writes or asks for
the time. What a rule computes (a grant, a deadline, who wakes up) is put into the facts, so
that folding and projecting later need no rules at all.
"""
