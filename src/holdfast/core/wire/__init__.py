"""Messages in the forms of providers, read and written. Pure; no SDK is imported.

    reading.py     whatever a caller hands to append: text, a dict, a Message, a provider's response
    openai.py      chat completions        (written by openai_out.py)
    responses.py   OpenAI's Responses      (written by responses_out.py)
    anthropic.py   Anthropic's Messages    (written by anthropic_out.py, marked for the cache by cache_marks.py)
    requests.py    what a written request holds, as types
    lines.py       holdfast's own JSON lines, lossless
    formats.py     any of these by name, for import and export
    tools.py       tool definitions
    names.py       names of tools and of who spoke, as every provider takes them
    replies.py     providers' responses: the message, how it ended, what it used
    streaming.py   providers' streams, event by event, to the same responses (each form in a streaming_*.py)

Every form is read leniently for imports, with a repair for each thing that was wrong, and strictly
for appending, with an error. Calls and results are matched by position; see `ids.py`.
"""
