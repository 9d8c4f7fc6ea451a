"""Messages in providers' formats, read and written. Pure; no SDK is imported.

    read.py              anything a caller passes to append: text, a dict, a Message, a provider's response
    openai_chat.py       OpenAI's chat completions
    openai_responses.py  OpenAI's Responses
    anthropic.py         Anthropic's Messages, with marks for its prompt cache
    requests.py          the types of rendered requests
    replies.py           providers' responses: the message, the finish reason, the usage
    stream.py            providers' streams, event by event, to the same responses (formats in stream_providers.py)
    formats.py           any of these formats by name, for import and export
    jsonl.py             holdfast's own JSON lines, lossless
    parts.py             parts of a message and their order
    calls.py             tool calls, results and their ids
    tools.py             tool definitions, names and schemas
    plain_data.py        callers' input as plain data, and notes of what had to be repaired
    validate.py          checks that a message is not empty and can be stored

Every format is read leniently for imports, with a repair for each problem, and strictly for appending, with an error.
Calls and results are matched by position; see `calls.py`.
"""
