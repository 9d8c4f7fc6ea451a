"""The webhook sink against a real server: signed, once per id, patient with what passes and firm with what does not."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

import holdfast
from holdfast.core.effects import MAX_REQUESTED_DELAY_MS
from holdfast.effects import Custom, WebhookSink, verify_webhook
from holdfast.errors import InvalidValue
from holdfast.extras import webhook as module
from holdfast.testing.clock import FrozenClock
from tests.effects.receiver import Receiver
from tests.effects.sinks import declare, notes

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
RAW = "a plain secret, as a text"


@pytest.fixture
def hf(clock: FrozenClock) -> Iterator[holdfast.Holdfast]:
    """A journal in memory."""
    with holdfast.open("memory:", clock=clock) as client:
        yield client


def seconds(clock: FrozenClock) -> float:
    return clock.now_ms() / 1000


def test_an_effect_is_posted_signed_under_its_id(hf: holdfast.Holdfast, clock: FrozenClock) -> None:
    with Receiver() as receiver:
        sink = WebhookSink(receiver.url, secret=SECRET, headers={"authorization": "Bearer t"}, clock=clock)
        hf.effects.add_sink("crm", sink)
        done = hf.effects.operate(
            lambda given, view: holdfast.effects.OperatorOutput(1, [Custom("crm.note", {"naïve": "ü"}, "crm")]),
            key="k",
            name="x",
        )
        assert hf.effects.dispatch().applied == 1
        ((path, headers, body),) = receiver.posted
    (outcome,) = hf.effects.operate(lambda given, view: None, key="k", name="x").outcomes
    assert outcome.answer == {"status": 200}
    assert path == "/hook?from=holdfast"
    assert headers["content-type"] == "application/json"
    assert headers["authorization"] == "Bearer t"
    assert headers["webhook-id"] == done.outcomes[0].effect
    assert headers["webhook-timestamp"] == str(clock.now_ms() // 1000)
    # As the specification says it, without our code.
    key = base64.b64decode(SECRET.removeprefix("whsec_"))
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    assert headers["webhook-signature"] == "v1," + base64.b64encode(hmac.digest(key, signed, "sha256")).decode()
    assert json.loads(body) == {
        "id": outcome.effect,
        "kind": "crm.note",
        "sink": "crm",
        "payload": {"naïve": "ü"},
        "scope": "operator/x",
        "tenant": "default",
        "operator": "x",
        "attempt": 1,
        "declared_at": clock.now_ms(),
    }
    assert verify_webhook(SECRET, headers, body, seconds(clock)) == json.loads(body)


def test_the_signature_is_that_of_the_specifications_example() -> None:
    headers = {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }
    assert verify_webhook(SECRET, headers, b'{"test": 2432232314}', 1614265330) == {"test": 2432232314}


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_what_may_pass_is_tried_again(hf: holdfast.Holdfast, clock: FrozenClock, status: int) -> None:
    with Receiver(lambda number: (status if number == 1 else 204, {})) as receiver:
        hf.effects.add_sink("crm", WebhookSink(receiver.url, secret=RAW, clock=clock))
        (id,) = notes(hf, 1)
        assert hf.effects.dispatch().failed == 1
        assert str(status) in hf.effects.get(id).reason
        clock.advance(2_000)
        assert hf.effects.dispatch().applied == 1
        first, second = receiver.posted
    assert first[1]["webhook-id"] == second[1]["webhook-id"] == id
    assert [json.loads(body)["attempt"] for _, _, body in (first, second)] == [1, 2]
    assert int(second[1]["webhook-timestamp"]) == int(first[1]["webhook-timestamp"]) + 2


@pytest.mark.parametrize("status", [301, 302, 307, 308, 400, 401, 403, 404, 410, 413, 422])
def test_any_other_answer_is_final_and_redirects_are_not_followed(
    hf: holdfast.Holdfast, clock: FrozenClock, status: int
) -> None:
    with Receiver(lambda number: (status, {"location": "/elsewhere"})) as receiver:
        hf.effects.add_sink("crm", WebhookSink(receiver.url, secret=RAW, clock=clock))
        notes(hf, 1)
        assert hf.effects.dispatch().dead == 1
        assert len(receiver.posted) == 1
    assert str(status) in next(hf.effects.dead()).reason


def test_when_to_come_back_is_heard_as_seconds_or_as_a_date(hf: holdfast.Holdfast, clock: FrozenClock) -> None:
    then = datetime.fromtimestamp(seconds(clock), UTC) + timedelta(seconds=90)
    said = ["77", format_datetime(then, usegmt=True), "9" * 400, "9" * 5_000, "soon", "-3", "1_0", "²"]
    waits = []
    for text in said:
        with Receiver(lambda number, text=text: (503, {"retry-after": text})) as receiver:  # type: ignore[misc]
            undo = hf.effects.add_sink("crm", WebhookSink(receiver.url, secret=RAW, clock=clock))
            (id,) = notes(hf, 1, scope=f"operator/{len(waits)}")
            hf.effects.dispatch(limit=1)
            at = hf.effects.get(id).retry_at
            assert at is not None
            waits.append(at - clock.now_ms())
            hf.effects.discard(id)
            undo()
    assert waits[:4] == [77_000, 90_000, MAX_REQUESTED_DELAY_MS, MAX_REQUESTED_DELAY_MS]
    assert all(wait < 2_000 for wait in waits[4:])


def _hangs_up(request: Any) -> None:
    request.connection.shutdown(socket.SHUT_RDWR)


def _talks_nonsense(request: Any) -> None:
    request.wfile.write(b"\x00\x01 what?\r\n\r\n")


def _drips(request: Any) -> None:
    for _ in range(40):
        try:
            request.wfile.write(b"H")
            request.wfile.flush()
        except OSError:
            return
        time.sleep(0.05)


def _says_nothing(request: Any) -> None:
    time.sleep(0.6)


@pytest.mark.parametrize("behaviour", [_hangs_up, _talks_nonsense, _drips, _says_nothing])
def test_a_server_that_misbehaves_is_tried_again(hf: holdfast.Holdfast, clock: FrozenClock, behaviour: Any) -> None:
    with Receiver(lambda number: behaviour) as receiver:
        hf.effects.add_sink("crm", WebhookSink(receiver.url, secret=RAW, timeout=0.2, clock=clock))
        notes(hf, 1)
        began = time.monotonic()
        assert hf.effects.dispatch().failed == 1
        assert time.monotonic() - began < 1.5


def test_a_server_that_is_not_there_is_tried_again(hf: holdfast.Holdfast, clock: FrozenClock) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    hf.effects.add_sink("crm", WebhookSink(f"http://127.0.0.1:{port}/", secret=RAW, timeout=1, clock=clock))
    hf.effects.add_sink("tls", WebhookSink(f"https://127.0.0.1:{port}/", secret=RAW, timeout=1, clock=clock))
    notes(hf, 1)
    notes(hf, 1, sink="tls")
    assert hf.effects.dispatch().failed == 2


def test_a_certificate_that_nobody_vouches_for_is_not_accepted(hf: holdfast.Holdfast, clock: FrozenClock) -> None:
    with Receiver() as receiver:
        url = receiver.url.replace("http:", "https:")
        hf.effects.add_sink("crm", WebhookSink(url, secret=RAW, timeout=1, clock=clock))
        notes(hf, 1)
        assert hf.effects.dispatch().failed == 1
        assert receiver.posted == []


def test_the_secret_is_nowhere_to_be_seen(hf: holdfast.Holdfast, clock: FrozenClock) -> None:
    with Receiver(lambda number: (403, {})) as receiver:
        sink = WebhookSink(receiver.url, secret=[SECRET, RAW], headers={"x-token": "hush"}, clock=clock)
        hf.effects.add_sink("crm", sink)
        notes(hf, 1)
        hf.effects.dispatch()
        said = repr(sink) + repr(list(hf.journal.events())) + repr(list(hf.effects.dead())) + repr(receiver.posted)
    for hidden in (SECRET, SECRET.removeprefix("whsec_"), RAW):
        assert hidden not in said
    assert "hush" not in repr(sink) + repr(list(hf.journal.events()))
    assert "from=holdfast" not in repr(sink) + repr(list(hf.journal.events()))


def test_several_secrets_sign_so_that_one_can_be_changed(hf: holdfast.Holdfast, clock: FrozenClock) -> None:
    with Receiver() as receiver:
        hf.effects.add_sink("crm", WebhookSink(receiver.url, secret=[SECRET, RAW], clock=clock))
        notes(hf, 1)
        hf.effects.dispatch()
        ((_, headers, body),) = receiver.posted
    for secret in (SECRET, RAW, RAW.encode(), [RAW, "yet another"]):
        assert verify_webhook(secret, headers, body, seconds(clock))["payload"] == 1
    with pytest.raises(InvalidValue, match="signature"):
        verify_webhook("yet another", headers, body, seconds(clock))


def signed(body: bytes = b'{"a":1}', id: str = "m1", at: int = 1_000, secret: str = RAW) -> dict[str, str]:
    """Headers as a sender would make them."""
    digest = hmac.new(secret.encode(), f"{id}.{at}.".encode() + body, hashlib.sha256).digest()
    return {
        "Webhook-Id": id,
        "Webhook-Timestamp": str(at),
        "Webhook-Signature": f"v1a,zzz v1,{base64.b64encode(digest).decode()}",
    }


def test_a_receiver_refuses_what_is_not_signed_or_not_fresh() -> None:
    assert verify_webhook(RAW, signed(), b'{"a":1}', 1_000) == {"a": 1}
    assert verify_webhook(RAW, signed(), b'{"a":1}', 1_300) == {"a": 1}
    wrong: list[tuple[dict[str, str], bytes, float, str]] = [
        (signed(), b'{"a":2}', 1_000, "signature"),
        (signed(secret="other"), b'{"a":1}', 1_000, "signature"),
        ({**signed(), "Webhook-Id": "m2"}, b'{"a":1}', 1_000, "signature"),
        ({**signed(), "Webhook-Timestamp": "1001"}, b'{"a":1}', 1_000, "signature"),
        ({**signed(), "Webhook-Signature": ""}, b'{"a":1}', 1_000, "signature"),
        ({**signed(), "Webhook-Signature": "v1,é"}, b'{"a":1}', 1_000, "signature"),
        ({**signed(), "Webhook-Timestamp": "now"}, b'{"a":1}', 1_000, "not a signed webhook"),
        ({**signed(), "Webhook-Timestamp": "-5"}, b'{"a":1}', 1_000, "not a signed webhook"),
        ({}, b"", 1_000, "not a signed webhook"),
        (signed(), b'{"a":1}', 1_301, "too long ago"),
        (signed(), b'{"a":1}', 699, "too long ago"),
        (signed(b"no json"), b"no json", 1_000, "not JSON"),
    ]
    for headers, body, now, words in wrong:
        with pytest.raises(InvalidValue, match=words):
            verify_webhook(RAW, headers, body, now)
    with pytest.raises(InvalidValue, match="too long ago"):
        verify_webhook(RAW, signed(), b'{"a":1}')
    fresh = signed(at=int(time.time()))
    assert verify_webhook(RAW, fresh, b'{"a":1}') == {"a": 1}


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("ftp://example.com/", {}),
        ("file:///etc/passwd", {}),
        ("example.com/hook", {}),
        ("http://", {}),
        ("http://user:pass@example.com/", {}),
        ("http://exa mple.com/", {}),
        ("http://example.com/a b", {}),
        ("http://example.com:99999/", {}),
        ("http://bücher.example/", {}),
        ("http://a..b/", {}),
        ("http://.example.com/", {}),
        (f"http://{'a' * 64}.example/", {}),
        ("http://example.com/\n", {}),
        ("http://exam\tple.com/", {}),
        ("http://example.com/#\r\n", {}),
        (None, {}),
        ("http://example.com/", {"secret": ""}),
        ("http://example.com/", {"secret": []}),
        ("http://example.com/", {"secret": "whsec_***"}),
        ("http://example.com/", {"secret": 7}),
        ("http://example.com/", {"timeout": 0}),
        ("http://example.com/", {"timeout": "soon"}),
        ("http://example.com/", {"headers": {"webhook-id": "x"}}),
        ("http://example.com/", {"headers": {"Content-Type": "text/plain"}}),
        ("http://example.com/", {"headers": {"x": "a\r\nb: c"}}),
        ("http://example.com/", {"headers": {"": "x"}}),
        ("http://example.com/", {"headers": {"x": 7}}),
    ],
)
def test_a_sink_that_cannot_work_is_refused_when_it_is_made(url: Any, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue) as caught:
        WebhookSink(url, **{"secret": RAW, **options})
    assert RAW not in str(caught.value)
    assert "pass@" not in str(caught.value)


def test_ports_and_addresses_of_every_kind_are_understood() -> None:
    assert module._split_url("https://example.com") == (True, "example.com", 443, "/")
    assert module._split_url("http://[::1]/x?y=1") == (False, "::1", 80, "/x?y=1")
    assert module._split_url("http://[::1]:8080/") == (False, "::1", 8080, "/")


def test_planted_a_signature_over_the_body_alone_is_noticed(
    hf: holdfast.Holdfast, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = module._sign
    with monkeypatch.context() as patch:
        patch.setattr(module, "_sign", lambda secret, id, stamp, body: real(secret, "", "", body))
        with pytest.raises(AssertionError):
            test_an_effect_is_posted_signed_under_its_id(hf, clock)


def test_a_dead_webhook_stops_its_own_lane_alone(hf: holdfast.Holdfast, clock: FrozenClock) -> None:
    with Receiver() as well, Receiver(lambda number: (500, {})) as ill:
        hf.effects.add_sink("ill", WebhookSink(ill.url, secret=RAW, clock=clock))
        hf.effects.add_sink("well", WebhookSink(well.url, secret=RAW, clock=clock))
        for _ in range(3):
            declare(hf, Custom("n", 1, "ill"), Custom("n", 1, "well"))
        done = hf.effects.dispatch()
    assert (done.applied, done.failed) == (3, 1)
