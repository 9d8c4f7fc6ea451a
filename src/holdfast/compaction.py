"""Compaction: how conversations are shortened, and when.

A `CompactionConfig` names a strategy and its numbers. A `Rule` applies it, or any other action, when its trigger is
due: `MessagesOver`, `TokensOver`, `PackOverBudget`, `Always`. `BudgetGuard` and `TelemetryRecorder` are ready-made
rules, and `ModelSummarizer` lets a model write the summaries. Strategies and presets are given by name.
"""

from holdfast.model.summarizers import ModelSummarizer
from holdfast.ports import Summarizer
from holdfast.records.compaction import (
    Always,
    BudgetGuard,
    CompactionConfig,
    CompactionResult,
    MessagesOver,
    Occasion,
    PackOverBudget,
    Rule,
    TelemetryRecorder,
    TokensOver,
)
from holdfast.records.packs import CompactionLevel
from holdfast.records.sessions import Summary

__all__ = [
    "Always",
    "BudgetGuard",
    "CompactionConfig",
    "CompactionLevel",
    "CompactionResult",
    "MessagesOver",
    "ModelSummarizer",
    "Occasion",
    "PackOverBudget",
    "Rule",
    "Summarizer",
    "Summary",
    "TelemetryRecorder",
    "TokensOver",
]
