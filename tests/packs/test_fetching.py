"""The fetcher against a real https server: it reads text, of a known size, in a known time, from whom it asked."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Refused, Unavailable
from holdfast.errors import InvalidValue, NotFound, TooLarge
from holdfast.extras import https as module
from holdfast.extras.https import HttpsFetcher
from tests.packs.web_server import HOST, PUBLIC, URL, Sockets, WebServer, fetcher, page


@pytest.mark.parametrize(
    "wrong",
    [
        {"timeout": 0},
        {"timeout": -1},
        {"timeout": "1"},
        {"timeout": float("inf")},
        {"max_bytes": 0},
        {"max_bytes": True},
    ],
)
def test_limits_are_limits(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue):
        HttpsFetcher([HOST], **wrong)


def test_a_context_that_checks_nothing_is_refused() -> None:
    careless = ssl.create_default_context()
    careless.check_hostname = False
    with pytest.raises(InvalidValue, match="certificates"):
        HttpsFetcher([HOST], context=careless)


def test_the_second_address_is_tried_if_the_first_is_not_reached(tmp_path: Path) -> None:
    with WebServer(tmp_path, page()) as server:

        def connect(address: str, port: int, timeout: float) -> socket.socket:
            if address == PUBLIC:
                raise ConnectionRefusedError
            return server.connect(address, port, timeout)

        assert fetcher(resolve=lambda host, port: [PUBLIC, "93.184.216.35"], connect=connect).fetch(URL) == "hello"


def test_a_page_is_read_under_the_hosts_own_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with WebServer(tmp_path, page("grüße\n".encode())) as server:
        read = fetcher(server)
        assert read.fetch(f"https://{HOST.upper()}:443/page?x=1#part") == "grüße\n"
        assert read.fetch(f"https://{HOST}") == "grüße\n"
    assert server.names == [HOST, HOST]
    head, first = (request.decode().split("\r\n") for request in server.requests[::-1])
    assert (first[0], head[0]) == ("GET /page?x=1 HTTP/1.1", "GET / HTTP/1.1")
    sent = {line.split(":")[0].lower(): line.split(": ", 1)[1] for line in first[1:] if line}
    assert sent["host"] == HOST
    assert sent.keys() == {"host", "accept", "accept-encoding", "connection", "user-agent"}, (
        "no credentials, no cookies"
    )


def test_a_certificate_of_another_host_or_of_nobody_ends_it_before_anything_is_asked(tmp_path: Path) -> None:
    other = "www.example.com"
    with WebServer(tmp_path, page()) as server:
        with pytest.raises(Refused, match="certificate"):
            fetcher(server, hosts=[other]).fetch(f"https://{other}/")
        with pytest.raises(Refused, match="certificate"):
            fetcher(server, context=None).fetch(URL)
    assert server.requests == []


def test_a_check_of_certificates_that_is_left_out_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(**_: Any) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context

    monkeypatch.setattr(module.ssl, "create_default_context", careless)
    with WebServer(tmp_path, page()) as server:
        read = HttpsFetcher(["www.example.com"], resolve=lambda host, port: [PUBLIC], connect=server.connect)
        assert read.fetch("https://www.example.com/") == "hello"
        assert server.requests, "somebody else was asked, which the test above would have seen"


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"])
def test_redirects_are_not_followed(status: str, tmp_path: Path) -> None:
    for place in ("https://127.0.0.1/", f"https://{HOST}/other", "http://evil.example/"):
        with WebServer(tmp_path, page(b"", status=status, more=f"location: {place}\r\n")) as server:
            with pytest.raises(Refused, match="not followed"):
                fetcher(server).fetch(URL)
            assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("status", "error"),
    [("404 Not Found", NotFound), ("410 Gone", NotFound), ("500 Oops", Unavailable), ("503 Later", Unavailable),
     ("429 Too Many", Unavailable), ("401 Who", Refused), ("403 No", Refused), ("204 Nothing", Refused),
     ("206 Partial", Refused)],
)  # fmt: skip
def test_an_answer_that_is_no_page_is_an_error(status: str, error: type[Exception], tmp_path: Path) -> None:
    with WebServer(tmp_path, page(b"x", status=status)) as server, pytest.raises(error, match=HOST):
        fetcher(server).fetch(URL)


@pytest.mark.parametrize(
    ("kind", "more"),
    [("image/png", ""), ("application/octet-stream", ""), ("application/pdf", ""), ("", ""), ("text", ""),
     ("text/plain; charset=utf-7", ""), ("text/plain; charset=idna", ""), ("text/plain", "content-encoding: gzip\r\n")],
)  # fmt: skip
def test_what_is_not_plain_text_is_refused(kind: str, more: str, tmp_path: Path) -> None:
    with (
        WebServer(tmp_path, page(b"x", kind, more=more)) as server,
        pytest.raises(InvalidValue, match="not plain text"),
    ):
        fetcher(server).fetch(URL)


@pytest.mark.parametrize("body", [b"\xff\xfe", b"a\0b", "ü".encode("latin-1")])
def test_bytes_that_are_not_the_text_they_claim_to_be_are_refused(body: bytes, tmp_path: Path) -> None:
    with WebServer(tmp_path, page(body)) as server, pytest.raises(InvalidValue, match="not utf-8"):
        fetcher(server).fetch(URL)


@pytest.mark.parametrize(
    ("kind", "body", "text"),
    [("application/json", b'{"a":1}', '{"a":1}'), ("text/html;charset=ISO-8859-1", b"\xfc", "ü"),
     ("application/ld+json", b"{}", "{}"), ('TEXT/Markdown; charset="UTF-8"', "ü".encode(), "ü"),
     ("text/plain", b"", "")],
)  # fmt: skip
def test_kinds_of_text(kind: str, body: bytes, text: str, tmp_path: Path) -> None:
    with WebServer(tmp_path, page(body, kind)) as server:
        assert fetcher(server).fetch(URL) == text


def test_the_size_is_limited_whatever_the_server_says_about_it(tmp_path: Path) -> None:
    chunk = b"400\r\n" + b"x" * 1024 + b"\r\n"
    chunked = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\n\r\n"
    until_closed = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n"
    for answer in (page(b"x" * 2_049), chunked + chunk * 3 + b"0\r\n\r\n", until_closed + b"x" * 3_000):
        with WebServer(tmp_path, answer) as server, pytest.raises(TooLarge, match="2,048"):
            fetcher(server, max_bytes=2_048).fetch(URL)
    for answer in (page(b"x" * 2_048), chunked + chunk * 2 + b"0\r\n\r\n", until_closed + b"x" * 2_048):
        with WebServer(tmp_path, answer) as server:
            assert fetcher(server, max_bytes=2_048).fetch(URL) == "x" * 2_048


def test_a_text_that_breaks_off_is_not_taken_for_whole(tmp_path: Path) -> None:
    """By its length, by its chunks, or by an end of the connection that was not announced."""

    def breaks_off(head: bytes) -> Callable[[ssl.SSLSocket, bytes], None]:
        def answer(secure: ssl.SSLSocket, request: bytes) -> None:
            secure.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n" + head)
            socket.socket.shutdown(secure, socket.SHUT_RDWR)

        return answer

    for head in (b"content-length: 9\r\n\r\nabc", b"transfer-encoding: chunked\r\n\r\n9\r\nabc", b"\r\nabc"):
        with WebServer(tmp_path, breaks_off(head)) as server, pytest.raises(Unavailable, match=HOST):
            fetcher(server).fetch(URL)


@pytest.mark.parametrize(
    "answer",
    [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 200 + b"\r\n",
     b"HTTP/1.1 200 OK\r\na: " + b"b" * 70_000,
     b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"],
)  # fmt: skip
def test_an_answer_that_is_no_http_is_an_error_of_ours(answer: bytes, tmp_path: Path) -> None:
    with WebServer(tmp_path, answer) as server, pytest.raises(Unavailable, match=HOST):
        fetcher(server).fetch(URL)


def test_the_time_covers_the_whole_exchange_also_if_the_server_never_stops_speaking(tmp_path: Path) -> None:
    stop = threading.Event()

    def drips(secure: ssl.SSLSocket, request: bytes) -> None:
        secure.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 100000\r\n\r\n")
        while not stop.wait(0.01):
            secure.sendall(b"x")

    with WebServer(tmp_path, drips) as server:
        began = time.monotonic()
        with pytest.raises(Unavailable, match=r"within 0\.3 seconds"):
            fetcher(server, timeout=0.3).fetch(URL)
        assert time.monotonic() - began < 3
        stop.set()


def test_the_time_covers_a_lookup_and_a_handshake_that_hang() -> None:
    stop = threading.Event()

    def hangs(host: str, port: int) -> list[str]:
        stop.wait(5)
        return [PUBLIC]

    sockets = Sockets()
    with pytest.raises(Unavailable, match="did not answer"):
        fetcher(resolve=hangs, connect=sockets.connect, timeout=0.1).fetch(URL)
    stop.set()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = silent.getsockname()
        read = fetcher(connect=lambda address, port, timeout: socket.create_connection(place, 5), timeout=0.1)
        with pytest.raises(Unavailable, match="did not answer"):
            read.fetch(URL)


def test_an_exchange_that_was_given_up_ends_and_closes_what_it_opened(tmp_path: Path) -> None:
    stop = threading.Event()
    with WebServer(tmp_path, lambda secure, request: stop.wait(5) and None) as server:
        with pytest.raises(Unavailable):
            fetcher(server, timeout=0.2).fetch(URL)
        waiting = [one for one in threading.enumerate() if one.name == "holdfast-fetch"]
        for one in waiting:
            one.join(2)
        assert not any(one.is_alive() for one in waiting)
        stop.set()


def test_whatever_a_lookup_raises_is_an_error_of_ours() -> None:
    errors = [socket.gaierror(8, "no such name"), OSError(), UnicodeError("label"), TimeoutError()]

    def fails(host: str, port: int) -> list[str]:
        raise errors.pop()

    while errors:
        with pytest.raises(Unavailable, match=HOST):
            fetcher(resolve=fails).fetch(URL)
    with pytest.raises(Refused, match="public"):
        fetcher(resolve=lambda host, port: []).fetch(URL)
