"""An MCP server over stdio that hangs, lies or floods, as its argument says. It is made without the SDK."""

from __future__ import annotations

import json
import sys
import time
from itertools import count
from typing import Any

TOOL = {"name": "look", "description": "Look.", "inputSchema": {"type": "object", "properties": {}}}

ODD = {
    "type": "object",
    "properties": {"a": {"enum": 5}, "b": False, "c": {"anyOf": 5, "type": [1]}},
    "required": ["b"],
}


def say(**message: Any) -> None:
    """Write one message."""
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def nested(depth: int) -> str:
    """A schema of that depth, as text: this process could not encode it."""
    return '{"type":"object","properties":{"a":' * depth + "{}" + "}}" * depth


def page(number: int, size: int, **more: Any) -> dict[str, Any]:
    """A page of tools, with names of their own."""
    return {"tools": [{**TOOL, "name": f"t{number}_{at}", **more} for at in range(size)]}


LISTS: dict[str, Any] = {
    "good": {"tools": [TOOL]},
    "none": {"tools": []},
    "no list": {"tools": 5},
    "no result": None,
    "twice": {"tools": [TOOL, TOOL]},
    "no name": {"tools": [{**TOOL, "name": ""}]},
    "no schema": {"tools": [{"name": "look"}]},
    "odd properties": {"tools": [{**TOOL, "inputSchema": {"type": "object", "properties": [1, 2]}}]},
    "odd property": {"tools": [{**TOOL, "inputSchema": ODD}]},
    "odd required": {"tools": [{**TOOL, "inputSchema": {"type": "object", "required": 5}}]},
    "deep": {"tools": [{**TOOL, "inputSchema": json.loads(nested(26))}]},
    "many": page(0, 1_001),
    "large": page(0, 4, description="x" * 400_000),
}


def list_tools(way: str, id: Any, numbers: count[int]) -> None:
    """Answer the request for tools, in a way."""
    if way == "silent":
        return
    if way == "exits":
        sys.exit(3)
    if way == "deaf":  # It reads no more, and writes no more.
        time.sleep(3600)
    if way == "deeper":
        tool = '{"name": "look", "inputSchema": ' + nested(400) + "}"
        sys.stdout.write(f'{{"jsonrpc": "2.0", "id": {json.dumps(id)}, "result": {{"tools": [{tool}]}}}}\n')
        sys.stdout.flush()
    elif way == "endless pages":
        say(id=id, result={**page(next(numbers), 1), "nextCursor": "again"})
    elif way == "empty pages":
        say(id=id, result={"tools": [], "nextCursor": "again"})
    elif way == "other id":
        say(id=f"{id}0", result=LISTS["good"])
    elif way == "no json":
        sys.stdout.write("This is no JSON.\n" * 10)
        sys.stdout.flush()
    elif way == "notifications":
        for number in count():
            say(method="notifications/message", params={"level": "info", "data": str(number)})
    elif way == "no line":
        while True:
            sys.stdout.write("x" * 65_536)
            time.sleep(0.01)
    elif way == "error":
        say(id=id, error={"code": -32603, "message": "secret " * 1_000})
    else:
        say(id=id, result=LISTS[way])


def main(way: str) -> None:
    """Serve until the client hangs up."""
    numbers = count()
    for line in sys.stdin:
        asked = json.loads(line)
        method, id = asked.get("method"), asked.get("id")
        if id is None:
            continue
        if method == "initialize" and way != "no hello":
            version = asked["params"]["protocolVersion"]
            info = {"name": "hostile", "version": "1"}
            say(id=id, result={"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info})
        elif method == "tools/list":
            list_tools(way, id, numbers)
        elif method == "tools/call":
            say(id=id, result={"content": [{"type": "text", "text": "looked"}]})
        elif way != "no hello":
            say(id=id, error={"code": -32601, "message": "Method not found"})


if __name__ == "__main__":
    main(sys.argv[1])
