"""Measurements: `python -m bench`, or `make bench`. Read ratios, not digits.

Everything that is compared is measured in interleaved rounds of one run, because a
machine's speed changes by the minute; a time on its own means nothing and is printed only
to give the ratios a scale. What was measured while other processes used the machine does not count:
when everybody waits for a processor, everything costs the same and every bar is met.
A missed bar is reported with by how much and never fails the run.

    harness.py     rounds, medians, ratios
    neighbours.py  how much of the machine others used meanwhile
    report.py      lines, bars, the table, results.json
    journals.py    temporary folders, journals, the raw limit
    workload.py    valid frame events: push, call, evidence, spend, pop
    calls.py       Python calls, in all threads
    counting.py    driver calls, statements, VM steps and pages of a journal at work
    session_*.py   the parts of the topic conversations, and the texts that are said in them
    chat_peers.py  the process in which peers of sessions are measured; peer_kinds.py is each of them as it comes,
                   peer_process.py how they are asked from here
    turn_*.py      the parts of the topic turns; turn_peers.py is the process of its peers, fake_model.py the model that
                   all of them ask
    crowd_peers.py the process of those that take turns in a thousand conversations at once, beside turn_crowd.py
    store_peers.py the same for peers of state; store_items.py is what everybody keeps and asks for

and one module per topic: single, frames, counts, calls, group, beside, whole, size, conversations, packs, turns,
scopes, tenants, importing, stores, search, retrieval. What a user gets is measured as it comes, with the text index;
where it says "index off", beside it.
"""
