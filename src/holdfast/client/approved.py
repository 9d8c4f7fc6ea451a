"""What a person approves is what runs, also if a release came between the question and the run.

A question shows a call with the defaults of its tool, and a default can be another one by the time of the yes. Then the
call is made with those that were shown. What nobody was shown is never used without asking.
"""

from __future__ import annotations

from typing import Any, Final

NEWER: Final = "it would use values that nobody was shown"
"""Why a call is asked about again whose tool has come to use something more."""


def as_shown(given: Any, shown: Any, used: Any, now: Any) -> dict[str, Any] | None:
    """All that a call is made with so that it uses what a question showed; None if it does so anyway.

    `given` is what somebody wrote, `used` that with the defaults of now, and `now` what a question would show of it. A
    redaction may have changed what the question holds: so nothing is taken from it that would be shown as it was.
    """
    if not all(isinstance(one, dict) for one in (given, shown, used, now)):
        return None
    kept = {name: value for name, value in shown.items() if given.get(name) is None and now.get(name) != value}
    return {**{name: value for name, value in used.items() if name in shown}, **kept} if kept else None


def is_more(shown: Any, now: Any) -> bool:
    """Whether a call would use something now that a question did not show. Nothing at all, null, is no value."""
    if not (isinstance(shown, dict) and isinstance(now, dict)):
        return False
    return any(value is not None and shown.get(name) != value for name, value in now.items())
