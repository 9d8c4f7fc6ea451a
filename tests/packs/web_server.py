"""A real https server on the loopback, under a certificate for docs.example.com that only these tests trust.

The key protects nothing: its certificate was signed by an authority whose own key was thrown away.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from holdfast.extras.https import HttpsFetcher

HOST = "docs.example.com"
PUBLIC = "93.184.216.34"
URL = f"https://{HOST}/page?x=1"
AUTHORITY = """\
-----BEGIN CERTIFICATE-----
MIIBXjCCAQOgAwIBAgIBATAKBggqhkjOPQQDAjAVMRMwEQYDVQQDDAp0ZXN0cyBv
bmx5MCAXDTIwMDEwMTAwMDAwMFoYDzIxMjAwMTAxMDAwMDAwWjAVMRMwEQYDVQQD
DAp0ZXN0cyBvbmx5MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEGqbth+hLevZI
8QFAYEOtJg6A8lIQBlbS406LLug+PjP30+lHAvGLEenmPWv3prFMw5QOxzJK8CVI
dVs8RFkvTaNCMEAwDwYDVR0TAQH/BAUwAwEB/zAOBgNVHQ8BAf8EBAMCAQYwHQYD
VR0OBBYEFJ/JEOGvfv3EZPuDOlOn9J2pL06iMAoGCCqGSM49BAMCA0kAMEYCIQDD
FoZlLyUpagvTwRHFvOjXdYqJnsPrs6h+BPL1FD/4PAIhAP8OzK1oSzdY6+cEHTW1
6J6hQZHcuHPNp95Mv05kccJB
-----END CERTIFICATE-----
"""
CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIBtDCCAVugAwIBAgIBAjAKBggqhkjOPQQDAjAVMRMwEQYDVQQDDAp0ZXN0cyBv
bmx5MCAXDTIwMDEwMTAwMDAwMFoYDzIxMjAwMTAxMDAwMDAwWjAbMRkwFwYDVQQD
DBBkb2NzLmV4YW1wbGUuY29tMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE1d14
6Lc3ftzjqeemQObB74pDK+3+nkn1qbP9VIuwhpIMuBySn31jztzvEGLSw8Pey/Cd
59H/gHg7J0SHE1p3C6OBkzCBkDAbBgNVHREEFDASghBkb2NzLmV4YW1wbGUuY29t
MAwGA1UdEwEB/wQCMAAwDgYDVR0PAQH/BAQDAgeAMBMGA1UdJQQMMAoGCCsGAQUF
BwMBMB0GA1UdDgQWBBQLulRRXpX8jUSIolmsxJFnnTctlTAfBgNVHSMEGDAWgBSf
yRDhr379xGT7gzpTp/SdqS9OojAKBggqhkjOPQQDAgNHADBEAiBHW2Cq+tfM5l6E
vJz4madV3nJ34aPPg04HS1AL0aX56wIgZEra0PJMcyCJWq2v3Kng1CH+TSHBpClp
Qphn5aGKMjk=
-----END CERTIFICATE-----
"""
KEY = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgfS/YSzgLkGytAmVm
a8Ri6kqB2AUBUCDyKRsL+3W1iVGhRANCAATV3Xjotzd+3OOp56ZA5sHvikMr7f6e
SfWps/1Ui7CGkgy4HJKffWPO3O8QYtLDw97L8J3n0f+AeDsnRIcTWncL
-----END PRIVATE KEY-----
"""

Answer = Callable[[ssl.SSLSocket, bytes], None]


def trusting() -> ssl.SSLContext:
    """What a client needs to believe the server."""
    return ssl.create_default_context(cadata=AUTHORITY)


def page(
    body: bytes = b"hello", kind: str = "text/plain; charset=utf-8", status: str = "200 OK", more: str = ""
) -> bytes:
    """An answer with its length."""
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


class WebServer:
    """Answers every request with the same bytes, or as a function says that is given the connection and the request."""

    def __init__(self, folder: Path, answer: bytes | Answer = b"") -> None:
        pem = folder / "server.pem"
        pem.write_text(CERTIFICATE + KEY)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(pem)
        self.answer = answer
        self.requests: list[bytes] = []
        self.names: list[str | None] = []
        self._context.sni_callback = lambda sock, name, context: self.names.append(name)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def connect(self, address: str, port: int, timeout: float) -> socket.socket:
        """In place of a connection to an address of the internet."""
        return socket.create_connection(("127.0.0.1", self.port), timeout)

    def _serve(self) -> None:
        while True:
            try:
                plain, _ = self._listener.accept()
            except OSError:
                return
            with contextlib.suppress(OSError), self._context.wrap_socket(plain, server_side=True) as secure:
                request = b""
                while b"\r\n\r\n" not in request and (more := secure.recv(65_536)):
                    request += more
                self.requests.append(request)
                if callable(self.answer):
                    self.answer(secure, request)
                else:
                    secure.sendall(self.answer)
                secure.unwrap()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Waking whoever accepts: closing alone does not.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)


class Sockets:
    """What was connected to."""

    def __init__(self) -> None:
        self.opened: list[str] = []

    def connect(self, address: str, port: int, timeout: float) -> socket.socket:
        self.opened.append(address)
        raise ConnectionRefusedError


def fetcher(server: WebServer | None = None, **given: Any) -> HttpsFetcher:
    """One that finds the host at a public address, which is really the server."""
    known: dict[str, Any] = {
        "hosts": [HOST],
        "resolve": lambda host, port: [PUBLIC],
        "context": trusting(),
        "timeout": 5,
    }
    if server is not None:
        known["connect"] = server.connect
    return HttpsFetcher(**(known | given))
