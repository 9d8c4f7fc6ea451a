"""The public test kit: contracts for backends, fault injection, frozen clocks, a simulated disk.

For tests of your own programs:

    Scripted, call, Recorded            models without a network: see holdfast.model.scripted and .recorded
    kill_everywhere, killable, kill_point   kill a program at every point, run it again, check the result
    FrozenClock, SeededIds              control over time and randomness

The pytest plugin, active as soon as holdfast is installed, offers fixtures for most of them.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.model.recorded import Recorded
    from holdfast.model.scripted import Scripted, call, echo
    from holdfast.testing.clock import FrozenClock, SeededIds
    from holdfast.testing.kill import KillReport, kill_everywhere
    from holdfast.testing.lives import kill_point, killable

__all__ = [
    "FrozenClock",
    "KillReport",
    "Recorded",
    "Scripted",
    "SeededIds",
    "call",
    "echo",
    "kill_everywhere",
    "kill_point",
    "killable",
]

# pytest loads the plugin in every run, used or not, so each name is imported only when first accessed.
_LAZY_IMPORTS = {
    "FrozenClock": "holdfast.testing.clock",
    "KillReport": "holdfast.testing.kill",
    "Recorded": "holdfast.model.recorded",
    "Scripted": "holdfast.model.scripted",
    "SeededIds": "holdfast.testing.clock",
    "call": "holdfast.model.scripted",
    "echo": "holdfast.model.scripted",
    "kill_everywhere": "holdfast.testing.kill",
    "kill_point": "holdfast.testing.lives",
    "killable": "holdfast.testing.lives",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY_IMPORTS:
        return getattr(_import_module(_LAZY_IMPORTS[name]), name)
    raise AttributeError(f"module 'holdfast.testing' has no attribute {name!r}")
