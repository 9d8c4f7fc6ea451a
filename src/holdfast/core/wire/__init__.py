"""Messages in providers' formats, read and written. Pure; no SDK is imported.

    read.py              anything a caller passes to append: text, a dict, a Message, a provider's response with usage
    openai_chat.py       OpenAI's chat completions
    openai_responses.py  OpenAI's Responses
    anthropic.py         Anthropic's Messages, with marks for its prompt cache
    stream.py            providers' streams, event by event, to the same responses
    formats.py           any of these formats by name, for import and export
    jsonl.py             holdfast's own JSON lines, lossless
    parts.py             parts of a message and their order; checks that a message is not empty and can be stored
    calls.py             tool calls, their results and their ids
    tools.py             tool definitions, names and schemas
    plain_data.py        callers' input as plain data, and notes of what had to be repaired

Every format is read leniently for imports, with a repair for each problem, and strictly for appending, with an error.
Calls and results are matched by position; see `calls.py`.
"""
