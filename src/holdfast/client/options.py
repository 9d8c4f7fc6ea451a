"""Keyword options that several methods share, each set spelled once: sync, async and agents take the same ones.

    def pack(self, budget: int | None = None, **options: Unpack[PackOptions]) -> ContextPack

An option that is left out has its default. An unknown one raises a TypeError.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypedDict

from holdfast.ports import Clock, Documents, Embedder, Fetcher, Ids, Memory, Model, Summarizer, Telemetry, Tokenizer
from holdfast.records.frames import Limits
from holdfast.records.settings import Settings
from holdfast.records.usage import Usage

SummarizerChoice = Summarizer | Model | str | Callable[..., str]
"""A writer of summaries: a model's name such as `openai:gpt-5-mini`, a model, a function or an object."""


class SharedOpenOptions(TypedDict, total=False):
    """Options of `holdfast.open` and `holdfast.open_async` alike."""

    durability: str
    """"full" (the default) returns from a write once it is on disk. "fast" is several times quicker on slow disks and
    may lose the newest writes in a power failure (not when the process is killed); nothing is ever corrupted."""
    settings: Settings | None
    """Limits and sizes, in place of the environment's."""
    clock: Clock | None
    """The clock, for tests."""
    ids: Ids | None
    """The source of ids and salts, for tests."""
    tokenizer: str | Tokenizer | Callable[[str], int] | None
    """A tokenizer that counts in place of the models' own."""
    prices: Mapping[str, Mapping[str, Any]] | Callable[[str | None, Usage], Any] | None
    """Prices in addition to the list prices, by prefix of the model's name, in US dollars per million tokens:
    `{"my-model": {"input": 1, "output": 4}}`. Or a function of (model, usage) that replaces them and returns the cost
    of one call in dollars, or None."""
    redact: Callable[[str], str] | None
    """A function that rewrites every text before it is written."""
    documents: Documents | None
    """A reader of files that evidence may point to."""
    fetcher: Fetcher | None
    """A reader of web pages that evidence may point to."""
    telemetry: Telemetry | None
    """A producer of spans."""
    strategies: dict[str, Callable[..., Any]] | None
    """Further strategies of compaction, by name."""


class OpenOptions(SharedOpenOptions, total=False):
    """Options of `holdfast.open`."""

    memory: Memory | None
    """The memory that ended conversations are offered to."""
    summarizer: SummarizerChoice | None
    """The writer of summaries."""
    embedder: str | os.PathLike[str] | Embedder | Callable[..., Any] | None
    """"wordllama", a model's folder, an endpoint or a function: searches go by meaning as well as by words."""


class SharedStoreOptions(TypedDict, total=False):
    """Options of `holdfast.open_store` and `holdfast.open_store_async` alike. Some belong to some stores only."""

    settings: Settings | None
    """Limits and sizes, in place of the environment's."""
    clock: Clock | None
    """The clock, for tests."""
    format: str | None
    """The format of files, "json" or "markdown". For fs."""
    search: bool | None
    """True if entries can be searched. For fs and memory."""
    most: int | None
    """The largest number of entries. For memory."""
    prefix: str | None
    """A prefix of all keys. For redis."""
    durability: str | None
    """"full" or "fast". For sqlite."""


class StoreOptions(SharedStoreOptions, total=False):
    """Options of `holdfast.open_store`."""

    embedder: str | os.PathLike[str] | Embedder | Callable[..., Any] | None
    """The source of vectors of what is written, where the store declares vectors."""


class SessionOptions(TypedDict, total=False):
    """Settings of a session, stored with it, so that later processes have them too."""

    system: str | None
    """The system prompt."""
    tools: Sequence[Any] | None
    """The tools that the model is told about."""
    model: str | None
    """The name of the model."""
    title: str | None
    """A title, for people."""
    tokenizer: str | None
    """The name of a tokenizer that counts in place of the model's own."""
    idle_timeout: float | None
    """Seconds without a message after which the conversation ends; 0 turns an earlier timeout off."""
    metadata: dict[str, Any] | None
    """Data that the application notes about the session."""


class SharedPackOptions(TypedDict, total=False):
    """Options of every pack, `hf.index.assemble_context_pack` included."""

    role: str
    """The role whose brief begins the pack. Default: "main"."""
    query: str | None
    """A text that evidence is ranked by. Default: the user's last message."""
    force_exclude: bool
    """True if even critical handles may be excluded."""
    min_compaction: str
    """The lowest level of compaction: none (the default), light, moderate, aggressive or critical."""
    tokenizer: str | None
    """The name of a tokenizer that counts in place of the model's own."""
    layout: str
    """The order of the pieces: "stable" (the default), which changes least at the front, or "classic"."""
    stickiness: float | None
    """The share of its size that a window gives up when it has to move, so that it moves rarely. Default: 0.4."""
    max_messages: int | None
    """The largest number of messages."""
    recall: int | None
    """The number of stored memories to look for."""
    as_of: int | None
    """A cursor of the journal: the pack is built from the journal as it was at that moment."""


class PackOptions(SharedPackOptions, total=False):
    """Options of `pack` of a session or a frame."""

    include: Sequence[str]
    """Handles that must be shown, by their ids."""
    exclude: Sequence[str]
    """Handles that are left out, by their ids. Wins over `include`."""


class AppendOptions(TypedDict, total=False):
    """Options of `append` of a session or a frame."""

    files: Sequence[Any]
    """Paths, bytes, or (name, bytes) pairs that go with a text."""
    partial: bool
    """True for a message that was cut off."""
    policy: str | None
    """The treatment by compaction: pinned, normal (the default), compress_first or discard_when_done."""
    key: str | None
    """The key under which the message is appended once."""


class TurnOptions(TypedDict, total=False):
    """Options of a turn."""

    if_busy: str
    """The behaviour if another turn is under way: queue (the default), join, interrupt or reject."""
    wait: float | None
    """The longest wait for another turn, in seconds."""
    tokens: int | None
    """The limit on tokens that the turn uses."""
    limits: Limits | None
    """Limits of the turn's frame."""
    budget: int | None
    """The limit on tokens that the model is shown each time."""
    budget_usd: float | None
    """The limit on the turn's cost, in US dollars."""
    loops: int
    """The limit on model calls."""
    if_interrupted: str | Mapping[str, str]
    """The handling of interrupted tool calls: ask (the default), retry or fail, or one for each tool by its name."""
    needs_approval: Collection[str] | Callable[[str, Any], bool]
    """Names of tools whose calls need approval, or a function of (name, arguments)."""
    on_error: str
    """The effect of an exception: leave (the default) keeps the turn live, fail ends it."""


class QuestionOptions(TypedDict, total=False):
    """Options of a question that suspends a frame."""

    kind: str
    """The kind of the question. Default: "approval"."""
    options: Sequence[str] | None
    """The answers to choose from."""
    recommended: str | None
    """The recommended one of the `options`."""
    arguments: Any
    """The arguments of the tool call in question."""
    payload: Any
    """Data for the person or program that answers."""
    token: bool
    """True to issue a link token, with which the question can be answered without its id."""
    expires_ms: int | None
    """Milliseconds until the question expires."""
    on_expiry: str | None
    """The handling of a question that expired."""
    until: int | None
    """For the kind "timer": the time at which the frame resumes by itself, in milliseconds since 1970."""
    subtree: bool
    """True to suspend the frame's descendants too."""
    release_budget: bool
    """False to keep the frame's unused tokens reserved meanwhile."""


class AgentOptions(TypedDict, total=False):
    """Options of an agent."""

    system: str | None
    """The system prompt."""
    tools: Iterable[Any]
    """Typed functions, tools, and MCP servers."""
    history: bool
    """True (the default) adds tools that read what packs left out."""
    limits: Limits | None
    """Limits of each turn's frame."""
    tokens: int | None
    """The limit on tokens that a turn uses."""
    budget: int | None
    """The limit on tokens that the model is shown each time."""
    budget_usd: float | None
    """The limit on a turn's cost, in US dollars."""
    loops: int
    """The limit on a turn's model calls."""
    options: Mapping[str, Any] | None
    """Values that go into every request, such as a temperature."""


def refuse_unknown(given: Mapping[str, Any], kind: type[Any], method: str) -> None:
    """Refuse options that a method does not have, as Python refuses unknown keyword arguments."""
    known = kind.__optional_keys__
    for name in given:
        if name not in known:
            takes = ", ".join(sorted(known))
            raise TypeError(f"{method}() got an unexpected keyword argument {name!r}. Its options are {takes}.")
