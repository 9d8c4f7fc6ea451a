"""Random valid conversations in each provider's own form, with everything a message of theirs may hold."""

from __future__ import annotations

import base64
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.sessions.generated import airline, text

Wire = dict[str, Any]
SHARED = Path(os.environ.get("HOLDFAST_SHARED", Path(__file__).parents[3] / "shared"))
REAL = SHARED / "data" / "tau-bench" / "airline-even-tasks.json"
REUSED = ["call_1", "call_2", "toolu_3"]
VALUES: list[Any] = [None, True, -3, 2.5, 10**25, "a\nb", "ü 🙂 \u2028", [1, [2]], {"deep": {"er": []}}, {}]


def airline_conversations(rng: random.Random) -> list[list[Wire]]:
    """The real ones where they are at hand, else some of the same shape."""
    if REAL.exists():
        return [each["traj"] for each in json.loads(REAL.read_text(encoding="utf-8"))]
    return [airline(rng, turns=rng.randint(1, 12)) for _ in range(100)]


def some(rng: random.Random, make: Callable[[random.Random], Any], most: int = 3) -> list[Any]:
    return [make(rng) for _ in range(rng.randint(1, most))]


def maybe(rng: random.Random, share: float = 0.3, **fields: Any) -> dict[str, Any]:
    """These fields, or none."""
    return fields if rng.random() < share else {}


def call_id(rng: random.Random) -> str:
    return rng.choice(REUSED) if rng.random() < 0.5 else f"call_{rng.randrange(10**9)}"


def data(rng: random.Random) -> str:
    return base64.b64encode(rng.randbytes(rng.randint(0, 40))).decode()


def arguments(rng: random.Random) -> dict[str, Any]:
    return {f"k{nth}": rng.choice(VALUES) for nth in range(rng.randint(0, 3))}


def json_of(rng: random.Random, value: Any) -> str:
    """JSON as a model may space it: it has to come back exactly."""
    separators = rng.choice([(",", ":"), (", ", ": "), (" ,", " : ")])
    return json.dumps(value, separators=separators, ensure_ascii=rng.random() < 0.5)


# OpenAI chat completions


def openai_text(rng: random.Random) -> Wire:
    return {"type": "text", "text": text(rng, 6), **maybe(rng, 0.1, prompt_cache_breakpoint={"mode": "explicit"})}


def openai_media(rng: random.Random) -> Wire:
    url = rng.choice([f"https://x.y/{rng.random()}.png", f"data:image/png;base64,{data(rng)}"])
    image = {"type": "image_url", "image_url": {"url": url, **maybe(rng, detail="high")}}
    file = {"file_data": f"data:application/pdf;base64,{data(rng)}", "filename": "a.pdf"}
    bare = {"file_data": data(rng), "filename": "b.bin"}
    audio = {"type": "input_audio", "input_audio": {"data": data(rng), "format": "wav"}}
    return rng.choice([image, audio, *({"type": "file", "file": each} for each in (file, bare, {"file_id": "file-1"}))])


def openai_call(rng: random.Random) -> Wire:
    if rng.random() < 0.15:
        return {"id": call_id(rng), "type": "custom", "custom": {"name": "shell", "input": text(rng, 4)}}
    function = {"name": rng.choice(["find", "book"]), "arguments": json_of(rng, arguments(rng))}
    more = maybe(rng, 0.1, extra_content={"google": {"thought_signature": "c2ln"}})
    return {"id": call_id(rng), "type": "function", "function": function, **more}


def openai_turn(rng: random.Random) -> list[Wire]:
    parts = [*some(rng, openai_text, 2), *(some(rng, openai_media, 2) if rng.random() < 0.4 else [])]
    out = [{"role": "user", "content": rng.choice([text(rng), parts]), **maybe(rng, 0.1, name="ann")}]
    if rng.random() < 0.2:
        out.append(
            {"role": rng.choice(["system", "developer"]), "content": rng.choice([text(rng), [openai_text(rng)]])}
        )
    while rng.random() < 0.5:
        calls = some(rng, openai_call)
        out.append({"role": "assistant", "content": rng.choice([None, "", text(rng)]), "tool_calls": calls})
        for call in rng.sample(calls, len(calls)):
            said = rng.choice([text(rng), "", json_of(rng, VALUES), [openai_text(rng)]])
            out.append({"role": "tool", "tool_call_id": call["id"], "content": said, **maybe(rng, name="find")})
    spoken = rng.choice([text(rng), some(rng, openai_text), [{"type": "refusal", "refusal": text(rng)}]])
    refusal = {"role": "assistant", "content": None, "refusal": text(rng)}
    audio = {"role": "assistant", "content": None, "audio": {"id": "audio_1"}}
    said = {"role": "assistant", "content": spoken, **maybe(rng, 0.1, reasoning_content=text(rng))}
    return [*out, rng.choice([said, said, said, said, refusal, audio])]


def openai_form(rng: random.Random) -> list[Wire]:
    """A conversation for chat completions."""
    system = [{"role": "system", "content": text(rng)}] if rng.random() < 0.7 else []
    return [*system, *(message for _ in range(rng.randint(1, 4)) for message in openai_turn(rng))]


# OpenAI Responses


def responses_input(rng: random.Random) -> Wire:
    image = {"type": "input_image", "detail": "auto", "image_url": f"data:image/png;base64,{data(rng)}"}
    file = {"type": "input_file", "file_data": f"data:application/pdf;base64,{data(rng)}", "filename": "a.pdf"}
    url = {"type": "input_file", "file_url": "https://x.y/a.pdf"}
    spoken = {"type": "input_text", "text": text(rng, 5)}
    return rng.choice([spoken, spoken, image, file, url, {"type": "input_image", "detail": "low", "file_id": "file-1"}])


def responses_said(rng: random.Random) -> Wire:
    annotations = [{"type": "url_citation", "start_index": 0, "end_index": 1, "title": "t", "url": "https://x.y"}]
    spoken = {"type": "output_text", "text": text(rng), "annotations": rng.choice([[], [], annotations])}
    refusal = {"type": "refusal", "refusal": text(rng)}
    content = [rng.choice([spoken, spoken, refusal]) for _ in range(rng.choice([1, 1, 2]))]
    full = {"type": "message", "id": f"msg_{rng.randrange(99)}", "status": "completed", "content": content}
    easy = {"content": text(rng), **maybe(rng, 0.2, phase="commentary")}
    return {"role": "assistant", **rng.choice([full, easy])}


def responses_reasoning(rng: random.Random) -> Wire:
    summary = [{"type": "summary_text", "text": text(rng)}]
    return {"type": "reasoning", "id": f"rs_{rng.randrange(99)}", "summary": summary, "encrypted_content": "zz=="}


def responses_call(rng: random.Random) -> Wire:
    given = {"call_id": call_id(rng), **maybe(rng, id=f"fc_{rng.randrange(99)}", status="completed")}
    if rng.random() < 0.2:
        return {"type": "custom_tool_call", "name": "shell", "input": text(rng, 4), **given}
    return {"type": "function_call", "name": "find", "arguments": json_of(rng, arguments(rng)), **given}


def responses_turn(rng: random.Random) -> list[Wire]:
    out: list[Wire] = [{"role": "user", "content": rng.choice([text(rng), some(rng, responses_input)])}]
    if rng.random() < 0.2:
        out.append({"role": "developer", "content": text(rng)})
    while rng.random() < 0.6:
        search = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}}
        made: list[Wire] = []
        for _ in range(rng.randint(1, 3)):
            makers = [responses_reasoning, responses_said, lambda _, search=search: search]
            made += [rng.choice(makers)(rng)] if rng.random() < 0.5 else []
            made.append(responses_call(rng))
        out += made
        for call in (item for item in made if "call_id" in item):
            kind = f"{call['type']}_output"
            output = rng.choice([text(rng), "", some(rng, responses_input)])
            more = maybe(rng, 0.2, id="fco_1", status="completed")
            out.append({"type": kind, "call_id": call["call_id"], "output": output, **more})
        if rng.random() < 0.1:
            shot = {"type": "computer_screenshot", "image_url": "https://x.y/z.png"}
            out.append({"type": "computer_call_output", "call_id": "hosted_1", "output": shot})
    return [*out, *([responses_reasoning(rng)] if rng.random() < 0.5 else []), responses_said(rng)]


def responses_form(rng: random.Random) -> list[Wire]:
    """A conversation for Responses."""
    return [item for _ in range(rng.randint(1, 4)) for item in responses_turn(rng)]


# Anthropic Messages


def anthropic_given(rng: random.Random) -> Wire:
    png = {"type": "base64", "media_type": "image/png", "data": data(rng)}
    pdf = {"type": "base64", "media_type": "application/pdf", "data": data(rng)}
    note = {"type": "text", "media_type": "text/plain", "data": text(rng)}
    spoken = {"type": "text", "text": text(rng, 5)}
    found = {"type": "search_result", "source": "x", "title": "t", "content": [{"type": "text", "text": text(rng)}]}
    return rng.choice(
        [
            spoken,
            spoken,
            {"type": "image", "source": rng.choice([png, {"type": "url", "url": "https://x.y/a.png"}])},
            {"type": "document", "source": rng.choice([pdf, note]), **maybe(rng, title="Doc", context="c")},
            {"type": "document", "source": {"type": "file", "file_id": "file_1"}, "citations": {"enabled": True}},
            found,
        ]
    )


def anthropic_call(rng: random.Random) -> Wire:
    more = maybe(rng, 0.2, caller={"type": "direct"})
    return {"type": "tool_use", "id": call_id(rng), "name": "find", "input": arguments(rng), **more}


def anthropic_said(rng: random.Random) -> Wire:
    hosted = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": text(rng)}}
    place = {"type": "char_location", "cited_text": "x", "document_index": 0, "document_title": None}
    place |= {"start_char_index": 0, "end_char_index": 1}
    cited = {"type": "text", "text": text(rng), "citations": [place]}
    return rng.choice([{"type": "text", "text": text(rng)}, {"type": "text", "text": text(rng)}, cited, hosted])


def anthropic_thought(rng: random.Random) -> Wire:
    redacted = {"type": "redacted_thinking", "data": "zz=="}
    return rng.choice([{"type": "thinking", "thinking": text(rng), "signature": "c2ln"}, redacted])


def anthropic_result(rng: random.Random, call: Wire) -> Wire:
    content = rng.choice([text(rng), some(rng, anthropic_given)])
    # Only a result that did not fail may be empty.
    said = rng.choice([{}, {"content": content}, {"content": content}, {"content": content, "is_error": True}])
    return {"type": "tool_result", "tool_use_id": call["id"], **said, **maybe(rng, 0.1, toolset_name="t")}


def anthropic_turn(rng: random.Random) -> list[Wire]:
    out: list[Wire] = [{"role": "user", "content": rng.choice([text(rng), some(rng, anthropic_given)])}]
    while rng.random() < 0.6:
        blocks = [anthropic_thought(rng)] if rng.random() < 0.3 else []
        calls: list[Wire] = []
        for _ in range(rng.randint(1, 3)):
            blocks += [anthropic_said(rng)] if rng.random() < 0.4 else []
            calls.append(anthropic_call(rng))
            blocks.append(calls[-1])
        more = some(rng, anthropic_given) if rng.random() < 0.3 else []
        results = [anthropic_result(rng, call) for call in calls]
        out += [{"role": "assistant", "content": blocks}, {"role": "user", "content": [*results, *more]}]
    blocks = [*([anthropic_thought(rng)] if rng.random() < 0.3 else []), *some(rng, anthropic_said)]
    return [*out, {"role": "assistant", "content": rng.choice([text(rng), blocks])}]


def anthropic_form(rng: random.Random) -> list[Wire]:
    """A conversation for Messages."""
    return [message for _ in range(rng.randint(1, 4)) for message in anthropic_turn(rng)]
