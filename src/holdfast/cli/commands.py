"""The table of commands: module, help text and arguments of each. It imports nothing, so loading it is cheap.

The help text of a command is its documentation; its function does not repeat it.
"""

from __future__ import annotations

from typing import NamedTuple


class Command(NamedTuple):
    """A row of the table: the command's module and function, its help text, its arguments, and an epilogue."""

    where: str
    help: str
    arguments: str = "[PATH]"
    more: str = ""


GROUPS = {
    "state": "Read, write, list and search scoped entries, of a journal or of another store.",
    "effects": "List waiting effects, approve, retry or discard them. Without a subcommand, lists them.",
}
DEFAULTS = {"effects": "ls"}
"""The command that runs if only its group is named."""

COMMANDS = {
    "chat": Command(
        "chat:chat",
        "Chat with an agent in the terminal; a killed chat continues when it is started again.",
        more="PATH defaults to agent.db in the current folder, and is created if missing. Ctrl-C stops a reply; at the "
        "prompt it ends the chat. Input from a pipe or file is read line by line. Type /help for more.",
    ),
    "log": Command("log:log", "Show the events of a journal, and follow new ones."),
    "stack": Command(
        "frames:stack",
        "Show the live frames as a tree.",
        "[PATH] [SCOPE]",
        "Reads only. Without SCOPE, shows every scope with live frames. If HOLDFAST_URL names the journal, write "
        "--scope SCOPE.",
    ),
    "sessions": Command("sessions:sessions", "List sessions with their titles, sizes and costs."),
    "messages": Command(
        "sessions:messages",
        "Show the messages of a session, oldest first.",
        "[PATH] SESSION",
        "Reads only. A tool call and its result carry the same mark. Texts are shortened unless --full is given.",
    ),
    "pack": Command(
        "pack:pack",
        "Show the context of a model call, or the context that a call would get now.",
        "[PATH] SESSION",
        "Reads only. Without --call, makes a pack now, which is not journaled. Texts are shortened; --json prints them "
        "in full.",
    ),
    "why": Command(
        "pack:why",
        "Explain why a model was or was not shown a fact, and how to change that.",
        "[PATH] SESSION FACT",
        "Reads only. Finds FACT by its words, ignoring case and whitespace. Write a FACT that begins with a hyphen "
        "after --.",
    ),
    "fork": Command(
        "sessions:fork",
        "Start a new thread that continues after a message.",
        "[PATH] SESSION",
        "Copies nothing, and leaves the old thread unchanged.",
    ),
    "search": Command(
        "search:search",
        "Find messages and entries by their words.",
        "[PATH] QUERY",
        "Searches a whole tenant, one session with --session, or the entries of one scope with --scope. Write a QUERY "
        "that begins with a hyphen after --.",
    ),
    "state get": Command(
        "state:get",
        "Show the value of a key.",
        "[PATH] SCOPE KEY",
        "Prints text as text and other values as JSON. --json adds the version and the options of the entry.",
    ),
    "state set": Command(
        "state:set_",
        "Write a key.",
        "[PATH] SCOPE KEY VALUE",
        "Reads VALUE as JSON if it parses, else as text. Write a KEY or VALUE that begins with a hyphen after --. The "
        "journal must exist; a store is created if missing.",
    ),
    "state ls": Command(
        "state:ls",
        "List the entries of a scope, or the scopes that have entries.",
        "[PATH] [SCOPE]",
        "If HOLDFAST_URL names the journal, write --scope SCOPE.",
    ),
    "state rm": Command(
        "state:rm",
        "Remove a key.",
        "[PATH] SCOPE KEY",
        "A journal keeps the history of the key until its subject is erased.",
    ),
    "state search": Command(
        "search:state_search",
        "Find entries of a scope by their words.",
        "[PATH] SCOPE QUERY",
        "Write a QUERY that begins with a hyphen after --.",
    ),
    "state history": Command(
        "state:history",
        "Show the past values of a key, newest first.",
        "[PATH] SCOPE KEY",
        "Reads only. Deleted and erased values are marked.",
    ),
    "state graph": Command(
        "state:graph",
        "Show the keys linked to a key, as a tree.",
        "[PATH] SCOPE KEY",
        "Reads only. Shows each key once, on a shortest path.",
    ),
    "questions": Command("frames:questions", "List open questions."),
    "answer": Command(
        "frames:answer",
        "Answer a question by its id, or with its link token.",
        "[PATH] QUESTION",
        "The work continues when its owner runs again. A question takes one answer; repeating it changes nothing.",
    ),
    "effects ls": Command("effects:ls", "List waiting effects, lane by lane."),
    "effects show": Command("effects:show", "Show one waiting effect in detail.", "[PATH] EFFECT"),
    "effects retry": Command(
        "effects:retry",
        "Make a dead, deferred or failed effect due at once.",
        "[PATH] EFFECT",
        "Sends nothing itself; the next dispatch does.",
    ),
    "effects discard": Command(
        "effects:discard",
        "Remove a waiting effect for good.",
        "[PATH] EFFECT",
        "The effect is not sent, and its lane continues. This cannot be undone.",
    ),
    "effects approve": Command("effects:approve", "Approve an effect that waits for approval.", "[PATH] EFFECT"),
    "effects reject": Command(
        "effects:reject",
        "Reject an effect that waits for approval.",
        "[PATH] EFFECT",
        "The effect is not sent, and its lane continues. This cannot be undone.",
    ),
    "effects run": Command(
        "effects:run",
        "Deliver effects to their sinks.",
        more="Runs until Ctrl-C, or once with --once. Serves the built-in sinks and the webhooks given with --webhook; "
        "leaves effects for other sinks alone. Reads a webhook's secret from the environment.",
    ),
    "verify": Command(
        "admin:verify",
        "Check every chain, version, row, reference and artifact.",
        more="Exits with 0 if the journal is intact and with 1 if it is not.",
    ),
    "rebuild": Command("admin:rebuild", "Rebuild every projection from the events while other processes work."),
    "backup": Command(
        "admin:backup",
        "Copy the journal while other processes write.",
        "[PATH] TARGET",
        "The copy appears whole or not at all.",
    ),
    "restore": Command(
        "admin:restore",
        "Create a journal from a backup, in full or up to a cursor.",
        "BACKUP [PATH]",
        "PATH is the new journal and must not exist yet.",
    ),
    "export": Command(
        "transfer:export",
        "Export a journal as JSON lines, or one session in a provider's format.",
        "[PATH] [TARGET]",
        "With --session, exports that session in a provider's format, to standard output if TARGET is not given.",
    ),
    "import": Command(
        "transfer:import_",
        "Create a journal from an export, or add a conversation to a session.",
        "[PATH] SOURCE",
        "Without --session, PATH is a new or empty journal. With --session, creates the journal and session if "
        "missing, and repairs and reports broken messages. Imports everything or nothing.",
    ),
    "erase": Command(
        "admin:erase",
        "Erase all content that belongs to a subject.",
        "[PATH] SUBJECT",
        "Cannot be undone. Chains still verify. Earlier backups and exports keep the content: erase it there as well.",
    ),
    "doctor": Command(
        "admin:doctor",
        "Show versions, settings, sizes and warnings.",
        more="Without PATH, tests a temporary journal. Warnings do not change the exit code.",
    ),
    "demo": Command(
        "demo:demo",
        "Kill an agent during a refund, resume it, and show that it paid exactly once.",
        "",
        "Takes a few seconds. Works in a temporary folder and removes it.",
    ),
}
