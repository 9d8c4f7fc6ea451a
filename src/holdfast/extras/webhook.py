"""A signed webhook as a sink: each effect is posted as JSON under its id, signed as Standard Webhooks prescribe.

A delivery succeeds once the receiver answers 2xx. A transient failure is retried, at the time that the receiver asks
for or later; any other answer is final. Redirects are not followed. The secret appears in no message and no event.
`verify_webhook` is the receiving end: it returns the body only if it was signed with the secret, and recently.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import http.client
import ssl
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from holdfast.core.journal.codec import encode
from holdfast.core.numbers import check_number
from holdfast.errors import EffectRefused, InvalidValue, RetryLater
from holdfast.extras.https import shut_down
from holdfast.ports import Clock
from holdfast.records.effects import DeclaredEffect
from holdfast.system import SystemClock

Secret = str | bytes
ID: Final = "webhook-id"
TIMESTAMP: Final = "webhook-timestamp"
SIGNATURE: Final = "webhook-signature"
PREFIX: Final = "whsec_"
VERSION: Final = "v1"
MAX_SIGNATURES: Final = 16
MAX_DIGITS: Final = 12
"""The most digits read of a number of seconds; a longer number exceeds any wait."""
RETRY_STATUSES: Final = frozenset({408, 425, 429})
_RESERVED_HEADERS: Final = frozenset(
    {ID, TIMESTAMP, SIGNATURE, "content-type", "content-length", "host", "transfer-encoding"}
)


class WebhookSink:
    """A sink that posts effects to a URL. `timeout` is in seconds for the whole exchange; `headers` are sent along.

    `secret` is text, `whsec_` followed by base64, or bytes. With several secrets each one signs, so that a receiver can
    rotate from one to the next.
    """

    def __init__(
        self,
        url: str,
        *,
        secret: Secret | Sequence[Secret],
        timeout: float = 10.0,
        headers: Mapping[str, str] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._secure, self._host, self._port, self._path = _split_url(url)
        self._secrets = _decode_secrets(secret)
        self._timeout = check_number("timeout", timeout, whole=False)
        if self._timeout <= 0:
            raise InvalidValue("timeout must be more than 0 seconds.")
        self._headers = _check_headers(headers or {})
        self._clock = clock or SystemClock()

    def deliver(self, effect: DeclaredEffect) -> dict[str, Any]:
        """Post an effect and return the status of the answer."""
        body = encode(effect)
        stamp = self._clock.now_ms() // 1000
        signed = {
            ID: effect.id,
            TIMESTAMP: str(stamp),
            SIGNATURE: " ".join(_sign(secret, effect.id, stamp, body) for secret in self._secrets),
        }
        try:
            with self._connect() as connection:
                headers = {**self._headers, "content-type": "application/json", **signed}
                connection.request("POST", self._path, body, headers)
                response = connection.getresponse()
                status, retry_after = response.status, response.getheader("retry-after")
        except (OSError, http.client.HTTPException) as error:
            # Only the type of the error: its message may contain what was sent.
            raise RetryLater(f"{self._host} could not be reached, or did not answer: {type(error).__name__}.") from None
        if 200 <= status < 300:
            return {"status": status}
        if status in RETRY_STATUSES or status >= 500:
            raise RetryLater(f"{self._host} answered {status}.", retry_after=self._parse_retry_after(retry_after))
        raise EffectRefused(f"{self._host} answered {status}, which will not change by asking again.")

    @contextmanager
    def _connect(self) -> Iterator[http.client.HTTPConnection]:
        """Open a connection that is shut down when the time is up, however slowly the other end responds."""
        made: http.client.HTTPConnection
        if self._secure:
            context = ssl.create_default_context()
            made = http.client.HTTPSConnection(self._host, self._port, timeout=self._timeout, context=context)
        else:
            made = http.client.HTTPConnection(self._host, self._port, timeout=self._timeout)
        cut = threading.Timer(self._timeout, lambda: shut_down(made.sock))
        cut.daemon = True
        cut.start()
        try:
            yield made
        finally:
            cut.cancel()
            made.close()

    def _parse_retry_after(self, text: str | None) -> float | None:
        """Parse Retry-After, a number of seconds or a date, into seconds from now; None if it is neither."""
        if text is None:
            return None
        if text.isascii() and text.isdigit():
            return float(text[:MAX_DIGITS])
        try:
            return max(0.0, parsedate_to_datetime(text).timestamp() - self._clock.now_ms() / 1000)
        except (ValueError, TypeError, OverflowError):
            return None

    def __repr__(self) -> str:
        return f"WebhookSink({'https' if self._secure else 'http'}://{self._host})"


def _split_url(url: object) -> tuple[bool, str, int, str]:
    """Split a URL into scheme, host, port and path; refuse anything else in it, without repeating it."""
    # Checked before parsing, which silently drops line ends.
    if not isinstance(url, str) or not url.isascii() or not url.isprintable() or " " in url:
        raise InvalidValue("url must be percent-encoded ASCII, without spaces or line ends.")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port, parts = None, None, urlsplit("")
    if parts.scheme not in ("http", "https") or not host:
        raise InvalidValue("url must be a whole http or https URL, such as https://example.com/hook.")
    if parts.username is not None or parts.password is not None:
        raise InvalidValue("url must not hold a user or password. Pass what authenticates you in headers.")
    try:
        encoded = host.encode("idna")  # As the lookup will encode it.
    except UnicodeError:
        encoded = b"."
    if encoded.startswith(b"."):
        raise InvalidValue("url must name a host: labels of up to 63 characters with single dots between them.")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    secure = parts.scheme == "https"
    return secure, host, port or (443 if secure else 80), path


def _check_headers(given: Mapping[str, str]) -> dict[str, str]:
    for name, value in given.items():
        if not isinstance(name, str) or not isinstance(value, str) or name.lower() in _RESERVED_HEADERS:
            raise InvalidValue(
                f"headers must be texts, and {', '.join(sorted(_RESERVED_HEADERS))} are set by the sink."
            )
        if not all(text.isascii() and text.isprintable() for text in (name, value)) or not name:
            raise InvalidValue(f"The header {name!r:.40} must be printable ASCII.")
    return dict(given)


def _decode_secrets(given: object) -> tuple[bytes, ...]:
    several = given if isinstance(given, list | tuple) else (given,)
    found = tuple(_decode_secret(one) for one in several)
    if not found or not all(found):
        raise InvalidValue("secret must not be empty.")
    return found


def _decode_secret(given: object) -> bytes:
    if isinstance(given, bytes):
        return given
    if not isinstance(given, str):
        raise InvalidValue(f"secret must be text or bytes, not {type(given).__name__}.")
    if not given.startswith(PREFIX):
        return given.encode()
    try:
        return base64.b64decode(given[len(PREFIX) :], validate=True)
    except binascii.Error:
        raise InvalidValue(f"A secret that begins with {PREFIX} must be base64 after it.") from None


def _sign(secret: bytes, id: str, stamp: int | str, body: bytes) -> str:
    digest = hmac.new(secret, f"{id}.{stamp}.".encode() + body, hashlib.sha256).digest()
    return f"{VERSION},{base64.b64encode(digest).decode()}"


def verify_webhook(
    secret: Secret | Sequence[Secret],
    headers: Mapping[str, str],
    body: bytes,
    now: float | None = None,
    tolerance: float = 300,
) -> Any:
    """Return the posted data if it was signed with the secret no longer than `tolerance` seconds ago.

    Anything else is refused with InvalidValue. `now` is in seconds since 1970. Remember `webhook-id`: a delivery is
    repeated when its answer was lost, and handling it twice must change nothing.
    """
    given = {str(name).lower(): str(value) for name, value in headers.items()}
    id, stamp, signatures = (given.get(name, "") for name in (ID, TIMESTAMP, SIGNATURE))
    if not id or not stamp.isascii() or not stamp.isdigit() or len(stamp) > 12 or not isinstance(body, bytes):
        raise InvalidValue("This is not a signed webhook: its id, time or body is missing.")
    # Every pair is compared, so that the time taken reveals nothing.
    wanted = [_sign(one, id, stamp, body).encode() for one in _decode_secrets(secret)]
    found = [one.encode("utf-8", "replace") for one in signatures.split(" ")[:MAX_SIGNATURES]]
    if not sum(hmac.compare_digest(one, other) for one in wanted for other in found):
        raise InvalidValue("The signature does not match: the sender used another secret, or the body was changed.")
    seconds = SystemClock().now_ms() / 1000 if now is None else now
    if abs(seconds - int(stamp)) > tolerance:
        raise InvalidValue("This was signed too long ago, or in the future. Check the clocks.")
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise InvalidValue("The body is not JSON.") from None
