"""An MCP server over stdio in a few lines, for tests: it begins at once, and takes its time to end.

How long, in seconds, may be said when it is started. Its tools say its process id; `die` ends it at once, and `hang`
gives no result.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

LINGERS = float(sys.argv[1]) if len(sys.argv) > 1 else 0.1
NAMES = ("die", "hang", "pay")


def answered(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    """What it says to a request; None if it says nothing."""
    if method == "initialize":
        server = {"name": "lingering", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": server}
    if method == "tools/list":
        schema = {"type": "object", "properties": {}}
        return {"tools": [{"name": one, "description": str(os.getpid()), "inputSchema": schema} for one in NAMES]}
    if params.get("name") == "die":
        os._exit(3)
    return None if params.get("name") == "hang" else {"content": [{"type": "text", "text": "paid"}]}


def main() -> None:
    """Answer until nobody asks any more."""
    for line in sys.stdin:
        asked = json.loads(line)
        if "id" not in asked:
            continue
        if asked["method"] in ("initialize", "tools/list", "tools/call"):
            result = answered(asked["method"], asked.get("params", {}))
            said = None if result is None else {"result": result}
        else:
            said = {"error": {"code": -32601, "message": f"there is no {asked['method']}"}}
        if said is not None:
            print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **said}), flush=True)
    time.sleep(LINGERS)  # It is the time that others wait for it to end.


if __name__ == "__main__":
    main()
