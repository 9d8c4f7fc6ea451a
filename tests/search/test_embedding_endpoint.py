"""An endpoint for embeddings: asked in batches, again when it is busy, never for ever; its key is told to nobody."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.errors import HoldfastError, InvalidValue, Unavailable
from holdfast.model import embedding_endpoint
from holdfast.model.embedders import resolve_embedder
from holdfast.model.embedding_endpoint import CHARACTERS_AT_ONCE, TEXTS_AT_ONCE, EndpointEmbedder
from holdfast.sqlite.vectors import pack_vectors
from holdfast.testing.clock import FrozenClock
from tests.search.embedding_server import Answer, EmbeddingServer, embedded, embedding_server, numbers_of

KEY = "sk-live-4f9c2b7788aa"


class Waits(FrozenClock):
    """A clock that says how long anybody slept."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        super().sleep(seconds)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[EmbeddingServer]:
    monkeypatch.delenv(embedding_endpoint.KEY_VARIABLE, raising=False)
    with embedding_server() as endpoint:
        yield endpoint


def ask(server: EmbeddingServer, **more: Any) -> EndpointEmbedder:
    return EndpointEmbedder(server.url, **({"model": "m", "api_key": KEY, "clock": Waits()} | more))


def failed(status: int, **headers: str) -> Answer:
    said = {"error": {"message": f"No, {KEY} may not.", "type": "invalid_request_error"}}
    return status, headers, json.dumps(said).encode()


def check_each_text_has_its_own_vector(ours: EndpointEmbedder) -> None:
    texts = [f"{'a' * (place % 7)} text number {place}" for place in range(2 * TEXTS_AT_ONCE + 3)]
    assert ours.embed(texts) == pack_vectors([numbers_of(text) for text in texts], len(texts), 3)


def test_each_text_gets_its_own_vector_in_batches(server: EmbeddingServer) -> None:
    check_each_text_has_its_own_vector(ask(server))
    assert [len(request["input"]) for request in server.requests] == [TEXTS_AT_ONCE, TEXTS_AT_ONCE, 3]
    assert {request["model"] for request in server.requests} == {"m"}
    assert set(server.paths) == {"/v1/embeddings"}
    assert {headers["Authorization"] for headers in server.headers} == {f"Bearer {KEY}"}


def test_planted_answers_in_the_order_they_come_are_caught(
    server: EmbeddingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def as_they_come(self: Any, raw: bytes, count: int) -> list[list[float]]:
        return [item["embedding"] for item in json.loads(raw)["data"]]

    monkeypatch.setattr(EndpointEmbedder, "_parse_vectors", as_they_come)
    with pytest.raises(AssertionError):
        check_each_text_has_its_own_vector(ask(server))


def test_long_texts_go_in_smaller_batches_and_blank_ones_not_at_all(server: EmbeddingServer) -> None:
    ours = ask(server)
    vectors = ours.embed(["x" * 9_000] * 60 + ["", "  "])
    assert vectors[-2:] == [bytes(3), bytes(3)]
    assert sum(len(request["input"]) for request in server.requests) == 60
    assert max(sum(map(len, request["input"])) for request in server.requests) <= CHARACTERS_AT_ONCE


def test_the_address_may_name_the_model_and_the_environment_the_key(
    server: EmbeddingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(embedding_endpoint.KEY_VARIABLE, KEY)
    ours = resolve_embedder(f"{server.url}/embeddings#small-1")
    assert ours is not None
    assert ours.dimensions == 3
    assert server.requests == [{"model": "small-1", "input": ["How many dimensions?"]}]
    assert server.paths == ["/v1/embeddings"]
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"
    assert ours.name == f"{server.url.removeprefix('http://')}/embeddings#small-1"


def test_the_key_is_read_when_it_is_used(server: EmbeddingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = ask(server, api_key=None, dimensions=3)
    for key in (KEY, "another"):
        monkeypatch.setenv(embedding_endpoint.KEY_VARIABLE, key)
        ours.embed([key])
    assert [headers["Authorization"] for headers in server.headers] == [f"Bearer {KEY}", "Bearer another"]


def test_without_a_key_none_is_sent_and_dimensions_are_asked_for_where_given(server: EmbeddingServer) -> None:
    ours = ask(server, api_key=None, dimensions=3)
    assert ours.dimensions == 3
    assert server.requests == []
    ours.embed(["x"])
    assert "Authorization" not in server.headers[0]
    assert server.requests[0]["dimensions"] == 3
    assert ours.name.endswith("#m:3")
    with pytest.raises(Unavailable, match="3 numbers instead of 4"):
        ask(server, dimensions=4).embed(["x"])


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_a_busy_endpoint_is_asked_again_after_a_while(status: int, server: EmbeddingServer) -> None:
    clock = Waits()
    server.script = [failed(status), failed(status, **{"Retry-After": "7"}), failed(status, **{"Retry-After": "3600"})]
    assert len(ask(server, clock=clock).embed(["x"])) == 1
    assert clock.slept == [0.5, 7, 20]


def test_an_endpoint_that_stays_busy_is_unavailable_and_sooner_when_somebody_searches(server: EmbeddingServer) -> None:
    clock = Waits()
    server.script = [failed(503, **{"Retry-After": "soon"})] * 6
    with pytest.raises(Unavailable, match="503, 2 times"):
        ask(server, clock=clock).embed(["x"], query=True)
    assert clock.slept == [0.5]
    with pytest.raises(Unavailable, match="503, 4 times"):
        ask(server, clock=clock).embed(["x"])
    assert clock.slept == [0.5, 0.5, 1, 2]


@pytest.mark.parametrize(
    ("status", "said"),
    [(401, "api_key"), (403, "api_key"), (400, "No, … may not"), (404, "address and model"), (302, "redirect")],
)
def test_a_refusal_is_final_and_does_not_repeat_the_key(status: int, said: str, server: EmbeddingServer) -> None:
    clock = Waits()
    server.script = [failed(status, Location="http://127.0.0.1:9/elsewhere")]
    with pytest.raises(InvalidValue, match=said) as caught:
        ask(server, clock=clock).embed(["x"])
    assert KEY not in str(caught.value)
    assert caught.value.__cause__ is None
    assert (clock.slept, len(server.requests)) == ([], 1)


WRONG_BODIES = {
    "nothing": b"",
    "a page": b"<html>welcome</html>",
    "other json": b'{"ok": true}',
    "too few": embedded([])[2],
    "too many": embedded(["a", "b"])[2],
    "one twice": b'{"data": [{"index": 1, "embedding": [1, 2]}]}',
    "nan": b'{"data": [{"index": 0, "embedding": [NaN, 1.0]}]}',
    "infinite": b'{"data": [{"index": 0, "embedding": [1e999, 1.0]}]}',
    "words": b'{"data": [{"index": 0, "embedding": ["1", "2"]}]}',
    "no numbers": b'{"data": [{"index": 0, "embedding": []}]}',
}


@pytest.mark.parametrize("kind", WRONG_BODIES)
def test_an_answer_without_a_vector_for_each_text_is_unavailable(kind: str, server: EmbeddingServer) -> None:
    server.script = [(200, {}, WRONG_BODIES[kind])]
    with pytest.raises(Unavailable, match=r"The embedder 127\.0\.0\.1"):
        ask(server).embed(["x"])
    assert len(server.requests) == 1


def test_answers_without_an_index_are_taken_in_order(server: EmbeddingServer) -> None:
    server.script = [(200, {}, b'{"data": [{"embedding": [1, 0]}, {"embedding": [0, 2.5]}]}')]
    assert ask(server).embed(["x", "y"]) == [bytes([127, 0]), bytes([0, 127])]


def test_a_silent_endpoint_is_unavailable_when_its_time_is_over_and_not_asked_again(server: EmbeddingServer) -> None:
    server.script = [None]
    with pytest.raises(Unavailable, match=r"within 0\.1 seconds"):
        ask(server, timeout=0.1).embed(["x"])
    assert len(server.requests) == 1


def test_an_answer_that_drips_or_floods_or_breaks_off_is_unavailable(
    server: EmbeddingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Hurried(Waits):
        def monotonic(self) -> float:
            self.advance(20_000)
            return super().monotonic()

    server.script = [(200, {}, b" " * 400_000)]
    with pytest.raises(Unavailable, match="within 30 seconds"):
        ask(server, clock=Hurried()).embed(["x"])
    server.script = [(200, {"Content-Length": "90", "Connection": "close"}, b"{")] * 4
    with pytest.raises(Unavailable, match="could not be reached"):
        ask(server).embed(["x"])
    monkeypatch.setattr(embedding_endpoint, "MOST_BYTES", 1_000)
    server.script = [(200, {}, b" " * 2_000)]
    with pytest.raises(Unavailable, match="longer than 1,000 bytes"):
        ask(server).embed(["x"])


def test_an_endpoint_that_is_not_there_or_speaks_no_tls_is_unavailable(server: EmbeddingServer) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        nowhere = f"http://127.0.0.1:{unused.getsockname()[1]}/v1"
        with pytest.raises(Unavailable, match="could not be reached"):
            EndpointEmbedder(nowhere, model="m", clock=Waits()).embed(["x"])
    with pytest.raises(Unavailable, match="could not be reached"):
        EndpointEmbedder(server.url.replace("http:", "https:"), model="m", clock=Waits()).embed(["x"])


@pytest.mark.parametrize(
    ("url", "more"),
    [
        ("https://host/v1", {}),
        ("https://host/v1", {"model": "a\nb"}),
        (f"https://user:{KEY}@host/v1", {"model": "m"}),
        (f"https://host/v1?key={KEY}", {"model": "m"}),
        ("https:///v1", {"model": "m"}),
        ("https://host:99999/v1", {"model": "m"}),
        ("https://host:port/v1", {"model": "m"}),
        ("ftp://host/v1", {"model": "m"}),
        ("https://ho st/v1\r\nX: y", {"model": "m"}),
        ("https://host/v1", {"model": "m", "api_key": f"{KEY}\r\nX: y"}),
        ("https://host/v1", {"model": "m", "api_key": f" {KEY}"}),
        ("https://host/v1", {"model": "m", "api_key": "sk-ключ"}),
        ("https://host/v1", {"model": "m", "dimensions": 0}),
        ("https://host/v1", {"model": "m", "dimensions": True}),
        ("https://host/v1", {"model": "m", "timeout": 0}),
        ("https://host/v1", {"model": "m", "timeout": float("nan")}),
    ],
)
def test_an_address_or_setting_that_cannot_be_is_refused_before_anything_is_sent(url: str, more: Any) -> None:
    with pytest.raises(InvalidValue) as caught:
        EndpointEmbedder(url, **more)
    assert KEY not in str(caught.value)


def check_the_key_is_told_to_nobody(server: EmbeddingServer) -> None:
    ours = ask(server)
    told = [ours.name, repr(ours), str(ours)]
    server.script = [(200, {}, KEY.encode()), *[failed(503)] * 4, failed(401), failed(400), failed(418), failed(307)]
    while server.script:
        with pytest.raises(HoldfastError) as caught:
            ours.embed(["x"])
        told.append(str(caught.value))
    assert len(told) == 9
    assert not [said for said in told if KEY in said]


def test_the_key_is_in_no_name_and_no_error(server: EmbeddingServer) -> None:
    check_the_key_is_told_to_nobody(server)


def test_planted_errors_that_repeat_what_the_endpoint_says_are_caught(
    server: EmbeddingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EndpointEmbedder, "_error_message", lambda self, answer: answer.decode())
    with pytest.raises(AssertionError):
        check_the_key_is_told_to_nobody(server)
