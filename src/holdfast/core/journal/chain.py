"""The hash chain of a stream: each event's hash covers the one before, its envelope and its facts.

Content enters only as HMAC-SHA256 under the salt stored beside it. When content and salt are erased, that digest is
kept in their place: the chain still verifies, and a guess of the content cannot be tested against it.
"""

from __future__ import annotations

import hashlib

import msgspec

from holdfast.records.events.envelope import StoredEvent

_ENCODER = msgspec.json.Encoder()
SALT_BYTES = 16
_BLOCK = 64
_INNER = bytes(byte ^ 0x36 for byte in range(256))
_OUTER = bytes(byte ^ 0x5C for byte in range(256))


def genesis_hash(tenant: str, stream: str) -> bytes:
    """Return the hash that a stream's first event continues: it covers tenant and stream, so neither can be swapped."""
    return hashlib.sha256(_ENCODER.encode(("holdfast", tenant, stream))).digest()


def content_mac(salt: bytes, content: bytes) -> bytes:
    """Return the HMAC-SHA256 of content under its salt: the digest that stands for content in the chain.

    Spelled out because a salt is used only once: creating an HMAC object for each costs several times as much as the
    two hashes that it consists of. A test compares it with `hmac`.
    """
    key = salt.ljust(_BLOCK, b"\0")
    inner = hashlib.sha256(key.translate(_INNER) + content).digest()
    return hashlib.sha256(key.translate(_OUTER) + inner).digest()


def link_hash(previous: bytes, event: StoredEvent) -> bytes:
    """Return the hash that an event has, or should have, after `previous`."""
    if event.content is not None and event.salt is not None:
        mac = content_mac(event.salt, event.content)
    else:
        mac = event.mac or b""
    envelope = _ENCODER.encode(
        (
            event.version,
            event.id,
            event.at,
            event.type,
            event.schema,
            event.key,
            event.rest,
            event.epoch,
            event.origin,
            event.trust,
            event.user,
            event.subject,
            event.causation,
            event.correlation,
            event.app,
        )
    )
    # The length prefixes keep the boundary between envelope and facts unambiguous.
    lengths = len(envelope).to_bytes(4, "big") + len(event.facts).to_bytes(4, "big")
    return hashlib.sha256(previous + lengths + envelope + event.facts + mac).digest()
