"""The public test kit: contracts for backends, fault injection, frozen clocks, a simulated disk.

For tests of your own programs:

    Scripted, call, Recorded            models without a network: see holdfast.model.scripted and .recorded
    kill_everywhere, killable, kill_point   kill a program at every point, run it again, check the result
    FrozenClock, SeededIds              control over time and randomness

The pytest plugin, active as soon as holdfast is installed, offers fixtures for most of them.
"""

from typing import TYPE_CHECKING

from holdfast.core.lazy import lazy_names as _lazy_names

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
__getattr__ = _lazy_names(
    __name__,
    {
        "holdfast.model.recorded": "Recorded",
        "holdfast.model.scripted": "Scripted call echo",
        "holdfast.testing.clock": "FrozenClock SeededIds",
        "holdfast.testing.kill": "KillReport kill_everywhere",
        "holdfast.testing.lives": "kill_point killable",
    },
)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
