"""What a provider says when it does not answer, as one of the kinds of `ModelFailed`, and whether waiting cures it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from holdfast.records.usage import Usage

ANSWERED = ("cut", "malformed", "timeout")
"""Kinds of failures for which a provider has worked, and may want to be paid."""
_NEVER = ("insufficient_quota", "billing_hard_limit_reached", "billing_not_active")
"""Limits that no waiting lifts."""
_POLICY = ("content_filter", "content_policy_violation", "bio_policy", "misalignment_policy_violation")
_KINDS = {
    "rate_limit_error": "rate_limited",
    "rate_limit_exceeded": "rate_limited",
    "timeout_error": "timeout",
    "invalid_request_error": "rejected",
    "invalid_prompt": "rejected",
    "context_length_exceeded": "rejected",
    "not_found_error": "rejected",
    "request_too_large": "rejected",
    "authentication_error": "unauthorised",
    "permission_error": "unauthorised",
}
_CURED = ("rate_limited", "unavailable", "timeout", "cut", "malformed")
_ADVICE = {
    "rate_limited": "Wait, or send less at a time.",
    "unavailable": "Try again later.",
    "timeout": "Try again, or allow it more time with timeout=….",
    "cut": "Try again.",
    "malformed": "Try again, or use another model.",
    "refused": "Say it in another way.",
    "rejected": "Correct the request or the model's settings.",
    "unauthorised": "Check the key, and that it may use this model.",
}
_LONGEST_QUOTE = 300


class Fault(Exception):
    """One attempt that came to nothing. `after` is how long the provider wants to be left alone, in seconds."""

    def __init__(
        self,
        why: str,
        *,
        kind: str,
        retryable: bool | None = None,
        status: int | None = None,
        after: float | None = None,
        usage: Usage | None = None,
    ) -> None:
        super().__init__(why)
        self.kind, self.status, self.after, self.usage = kind, status, after, usage
        self.retryable = kind in _CURED if retryable is None else retryable

    @property
    def advice(self) -> str:
        """What helps."""
        return _ADVICE[self.kind]


def by_status(status: int, headers: Mapping[str, str], body: bytes, now_ms: int) -> Fault:
    """A refusal of the whole request."""
    error = _error_in(body)
    kind, names = _kind_of_status(status), _names(error)
    # A wrong key is quoted in part by some providers; what they say about it is left out.
    said = "" if status == 401 else _quoted(error)
    retryable = None
    if names.intersection(_POLICY):
        kind = "refused"
    elif headers.get("x-should-retry") == "false" or (kind == "rate_limited" and names.intersection(_NEVER)):
        retryable = False
    why = f"it answered {status}{said}"
    return Fault(why, kind=kind, retryable=retryable, status=status, after=asked_wait(headers, now_ms))


def by_error(error: Mapping[str, Any], usage: Usage | None = None) -> Fault:
    """An error in place of an answer, or in the middle of one."""
    code = error.get("code")
    if isinstance(code, int) and not isinstance(code, bool) and 400 <= code < 600:
        # Some gateways answer 200 and put the status inside.
        return Fault(f"it answered {code}{_quoted(error)}", kind=_kind_of_status(code), status=code, usage=usage)
    names = _names(error)
    kind = next((_KINDS[name] for name in sorted(names) if name in _KINDS), "unavailable")
    if names.intersection(_POLICY):
        kind = "refused"
    elif any("image" in name for name in names):
        kind = "rejected"
    lasting = bool(names.intersection(_NEVER))
    return Fault(
        f"it ended with an error{_quoted(error)}",
        kind="rate_limited" if lasting else kind,
        retryable=False if lasting else None,
        usage=usage,
    )


def asked_wait(headers: Mapping[str, str], now_ms: int) -> float | None:
    """Seconds that a provider asks to be left alone for: as a number, in milliseconds, or until a date."""
    for name, divisor in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        text = (headers.get(name) or "").strip()
        if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text):
            return float(text) / divisor
    try:
        until = parsedate_to_datetime(headers.get("retry-after") or "")
        return max(0.0, until.timestamp() - now_ms / 1000)
    except (TypeError, ValueError, OverflowError):
        return None


def _kind_of_status(status: int) -> str:
    if status == 429:
        return "rate_limited"
    if status in (401, 403):
        return "unauthorised"
    if status in (408, 504):
        return "timeout"
    # 409 and 425 are about the moment, not about the request.
    return "unavailable" if status in (409, 425) or status >= 500 else "rejected"


def _error_in(body: bytes) -> Mapping[str, Any]:
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    error = found.get("error", found) if isinstance(found, dict) else found
    return error if isinstance(error, dict) else {"message": error if isinstance(error, str) else ""}


def _names(error: Mapping[str, Any]) -> set[str]:
    return {name for key in ("type", "code") if isinstance(name := error.get(key), str)}


def _quoted(error: Mapping[str, Any]) -> str:
    said = error.get("message")
    return f": {' '.join(said.split())[:_LONGEST_QUOTE]}" if isinstance(said, str) and said.strip() else ""
