"""`hf.effects`: sinks, the outbox, and effects that wait. Each method is a line that names a flow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from holdfast.client_state import StateStore
from holdfast.flow import effects, operating, outbox, sinks, state
from holdfast.flow.sinks import Sinks
from holdfast.ports import Acting, Ports
from holdfast.records.effects import DeclaredEffect, Dispatched, EffectInfo, Operated
from holdfast.records.scope import Address
