"""The table of commands: module, help text and arguments of each. It imports nothing, so loading it is cheap."""

from __future__ import annotations

from typing import NamedTuple


class CommandGroup(NamedTuple):
    """A group of commands; `alone` is the command that runs if only the group is named."""

    help: str
    alone: str = ""


class Command(NamedTuple):
    """A row of the table: the command's module and function, its help text, its arguments, and an epilogue."""

    where: str
    help: str
    arguments: str = "[PATH]"
    more: str = ""


GROUPS = {
    "state": CommandGroup("Read, write, list and search scoped entries, of a journal or of another store."),
    "effects": CommandGroup(
        "Show declared effects that wait, and decide about them. Alone, it lists them.", alone="ls"
    ),
}

COMMANDS = {
    "chat": Command(
        "chat:chat",
        "Talk with an agent in the terminal; kill it, start again, and it goes on.",
        more="Without a PATH it is agent.db in this folder, made if it is not there. Ctrl-C while it answers stops it, "
        "and ends the chat at the prompt. Input that is no terminal is taken line by line. Type /help for more.",
    ),
    "log": Command("log:log", "Show what happened, and follow it."),
    "stack": Command(
        "stack:stack",
        "Show the live frames as a tree.",
        "[PATH] [SCOPE]",
        "Only looks. Without a SCOPE, every scope with live frames is shown. Where HOLDFAST_URL names the journal, "
        "write --scope SCOPE.",
    ),
    "sessions": Command("sessions:sessions", "Show the conversations with their titles, sizes and costs."),
    "messages": Command(
        "messages:messages",
        "Show what was said, oldest first.",
        "[PATH] SESSION",
        "Only looks. A result and its call have the same mark. Texts are shortened unless --full is given.",
    ),
    "pack": Command(
        "pack:pack",
        "Show what a model call was shown, or would be shown now.",
        "[PATH] SESSION",
        "Only looks. Without --call it is a pack made now, which is not journaled. Texts are shortened; --json has "
        "them whole.",
    ),
    "why": Command(
        "pack:why",
        "Show why a model knows a fact or not, and what to do about it.",
        "[PATH] SESSION FACT",
        "Only looks. FACT is found by its words, whatever their case and blanks. One that begins with a hyphen is "
        "written after --.",
    ),
    "fork": Command(
        "messages:fork",
        "Begin a new thread that goes on after a message.",
        "[PATH] SESSION",
        "Nothing is copied, and the old thread stays as it is.",
    ),
    "search": Command(
        "search:search",
        "Find messages and entries by their words.",
        "[PATH] QUERY",
        "Everything of a tenant is searched, or with --session one conversation, or with --scope the entries of one "
        "scope. A QUERY that begins with a hyphen is written after --.",
    ),
    "state get": Command(
        "state:get",
        "Show what a key holds.",
        "[PATH] SCOPE KEY",
        "Text is shown as text and anything else as JSON. With --json also its version and how it is kept.",
    ),
    "state set": Command(
        "state:set_",
        "Write a key.",
        "[PATH] SCOPE KEY VALUE",
        "VALUE is JSON if it can be read so, else text. A KEY or VALUE that begins with a hyphen is written after --. "
        "A journal must be there already; a store is made if it is not.",
    ),
    "state ls": Command(
        "state:ls",
        "Show the entries of a scope, or the scopes that have any.",
        "[PATH] [SCOPE]",
        "Where HOLDFAST_URL names the journal, write --scope SCOPE.",
    ),
    "state rm": Command(
        "state:rm",
        "Remove a key.",
        "[PATH] SCOPE KEY",
        "In a journal its history stays, until the one whom it is about is erased.",
    ),
    "state search": Command(
        "search:state_search",
        "Find entries of a scope by their words.",
        "[PATH] SCOPE QUERY",
        "A QUERY that begins with a hyphen is written after --.",
    ),
    "state history": Command(
        "state:history",
        "Show what a key held, newest first.",
        "[PATH] SCOPE KEY",
        "Only looks. What was deleted or erased says so.",
    ),
    "state graph": Command(
        "state:graph",
        "Show what a key is connected with, as a tree.",
        "[PATH] SCOPE KEY",
        "Only looks. Each key is shown once, by a shortest way.",
    ),
    "questions": Command("questions:questions", "Show the questions that wait for an answer."),
    "answer": Command(
        "questions:answer",
        "Answer a question by its id, or with its link token.",
        "[PATH] QUESTION",
        "The work goes on when its owner runs again. One question has one answer; the same one again changes nothing.",
    ),
    "effects ls": Command("effects:ls", "Show the effects that wait, lane by lane."),
    "effects show": Command("effects:show", "Show all that is known of an effect that waits.", "[PATH] EFFECT"),
    "effects retry": Command(
        "effects:retry",
        "Let an effect that is dead, deferred or between attempts be tried at once.",
        "[PATH] EFFECT",
        "Nothing is sent by this command: the next dispatch does it.",
    ),
    "effects discard": Command(
        "effects:discard",
        "Take an effect out for good, whatever it waits for.",
        "[PATH] EFFECT",
        "It is not sent, and its lane goes on. It cannot be undone.",
    ),
    "effects approve": Command("effects:approve", "Let an effect go that waits for approval.", "[PATH] EFFECT"),
    "effects reject": Command(
        "effects:reject",
        "Take an effect out that waits for approval.",
        "[PATH] EFFECT",
        "It is not sent, and its lane goes on. It cannot be undone.",
    ),
    "effects run": Command(
        "effects:run",
        "Give effects to their sinks.",
        more="Goes on until Ctrl-C unless --once is given. Built-in sinks and the webhooks that are named are worked "
        "on; effects for others are left alone. A webhook's secret is read from the environment.",
    ),
    "verify": Command(
        "admin:verify",
        "Check every chain, version, row, reference and artifact.",
        more="Ends with 0 if everything is as it was written, and with 1 if anything is not.",
    ),
    "rebuild": Command("admin:rebuild", "Make every projection anew from the events, while others go on."),
    "backup": Command(
        "admin:backup",
        "Copy the journal while others write.",
        "[PATH] TARGET",
        "The copy appears whole or not at all.",
    ),
    "restore": Command(
        "admin:restore",
        "Make a journal of a backup, whole or up to a cursor.",
        "BACKUP [PATH]",
        "PATH is the new journal and must not exist yet.",
    ),
    "export": Command(
        "transfer:export",
        "Write the whole journal as JSON lines, or one conversation.",
        "[PATH] [TARGET]",
        "With --session, the conversation of that session in a provider's form, on standard output without a TARGET.",
    ),
    "import": Command(
        "transfer:import_",
        "Make a journal of an export, or add a conversation to a session.",
        "[PATH] SOURCE",
        "Without --session, PATH is the new journal, or an empty one. With it, the session is made if it is not there, "
        "as is the journal; what is broken in the conversation is repaired and told. All or nothing is imported.",
    ),
    "erase": Command(
        "admin:erase",
        "Remove all content that belongs to a subject, for good.",
        "[PATH] SUBJECT",
        "Chains still verify. Backups and exports made before keep the content: erase there as well.",
    ),
    "doctor": Command(
        "doctor:doctor",
        "Show versions, settings, sizes and anything to worry about.",
        more="Without a journal, a temporary one is tried. Warnings do not change the exit code.",
    ),
    "demo": Command(
        "demo:demo",
        "Kill an agent while it pays money back, resume it, and pay exactly once.",
        "",
        "Takes a few seconds, in a temporary folder, and leaves nothing behind.",
    ),
}
