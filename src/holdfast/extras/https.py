"""Text from the web as evidence, over https and only from listed hosts.

A host is resolved once. Every address must be public, including one embedded in another, and the connection goes to
a checked address under the host's own certificate. Redirects are not followed, no credentials or proxies are used,
and size and time are limited over the whole exchange. The lists of networks are written out because those of Python's
own `ipaddress` differ between releases and call some private networks global.
"""

from __future__ import annotations

import http.client
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final
from urllib.parse import urlsplit

from holdfast.core.numbers import check_number
from holdfast.errors import HoldfastError, InvalidValue, NotFound, Refused, TooLarge, Unavailable
from holdfast.version import __version__

Resolve = Callable[[str, int], Sequence[str]]
"""Resolves a host and port to the host's addresses."""
Connect = Callable[[str, int, float], socket.socket]
"""Opens a connection to an address and port, with a timeout in seconds."""

PORT: Final = 443
TIMEOUT: Final = 10.0
MAX_BYTES: Final = 1_000_000
MAX_URL_CHARS: Final = 4_096
MAX_ADDRESSES: Final = 4
"""The most addresses of one host to try."""
_CHUNK: Final = 65_536
_LABEL: Final = "[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
# Names only: the last label begins with a letter, so no spelling of an IP address matches.
_HOST: Final = re.compile(rf"(?:{_LABEL}\.)+[a-z](?:[a-z0-9-]{{0,61}}[a-z0-9])?", re.ASCII)
_TEXT_TYPES: Final = re.compile(r"text/[\w.+-]+|application/(?:[\w.-]+\+)?(?:json|xml|yaml|x-yaml|toml)", re.ASCII)
_CHARSETS: Final = frozenset({"utf-8", "utf8", "us-ascii", "ascii", "iso-8859-1", "windows-1252"})
_MISSING_STATUSES: Final = frozenset({404, 410})
_RETRY_STATUSES: Final = frozenset({408, 425, 429})
_HEADERS: Final = {
    "accept": "text/*, application/json;q=0.9, application/xml;q=0.8",
    "accept-encoding": "identity",
    "connection": "close",
    "user-agent": f"holdfast/{__version__}",
}

IpAddress = IPv4Address | IPv6Address

_NOT_PUBLIC_4: Final = tuple(
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",
        "100.64.0.0/10",  # carrier-grade NAT; the metadata service of one cloud
        "127.0.0.0/8",
        "168.63.129.16/32",  # an internal service of another cloud
        "169.254.0.0/16",  # link-local; the metadata service of most clouds
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.31.196.0/24",  # AS112
        "192.52.193.0/24",  # multicast relays
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",
        "192.175.48.0/24",  # AS112
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",
    )
)
_GLOBAL_6: Final = IPv6Network("2000::/3")
"""The only part of IPv6 that is allocated to networks of the internet."""
_NOT_PUBLIC_6: Final = tuple(
    IPv6Network(text)
    # Protocols, documentation, 6to4, AS112, documentation.
    for text in ("2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20")
)
_NAT64: Final = IPv6Network("64:ff9b::/96")
_ISATAP: Final = frozenset({0x0000_5EFE, 0x0200_5EFE})
_LOW_32: Final = 0xFFFF_FFFF
_BEHIND_TRANSLATED: Final = (56, 48, 40, 32, 24)
"""Zero bits behind the IPv4 address that a NAT64 prefix of 32, 40, 48, 56 or 64 bits is followed by (RFC 6052)."""
_THIS_NETWORK: Final = IPv4Network("0.0.0.0/8")


class HttpsFetcher:
    """A fetcher of text from https URLs on `hosts`, which are names that must match exactly.

    `timeout` is in seconds and covers the whole exchange, including the lookup. A body larger than `max_bytes` is
    refused.
    """

    def __init__(
        self,
        hosts: Sequence[str],
        *,
        timeout: float = TIMEOUT,
        max_bytes: int = MAX_BYTES,
        resolve: Resolve | None = None,
        connect: Connect | None = None,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self._hosts = _check_hosts(hosts)
        self._timeout = check_number("timeout", timeout, whole=False)
        if not 0 < self._timeout <= threading.TIMEOUT_MAX:
            raise InvalidValue("timeout must be more than 0 seconds.")
        self._max_bytes = check_number("max_bytes", max_bytes, least=1, most=1_000_000_000)
        self._resolve = resolve or _resolve
        self._connect = connect or _connect
        if context is not None and not (context.check_hostname and context.verify_mode == ssl.CERT_REQUIRED):
            raise InvalidValue("context must check certificates and host names: ssl.create_default_context() does.")
        self._context = context

    def fetch(self, url: str) -> str:
        """Return the text at a URL."""
        host, path = self._split_url(url)
        # A name lookup cannot be interrupted, so the exchange runs in a thread that the caller can abandon.
        exchange = _Exchange(lambda held: self._run_exchange(host, path, held))
        exchange.start()
        exchange.join(self._timeout)
        return exchange.result(f"{host} did not answer within {self._timeout:g} seconds. Try again later.")

    def _split_url(self, url: object) -> tuple[str, str]:
        """Return the host and path of a URL that may be fetched; refuse any other."""
        if (
            not isinstance(url, str)
            or len(url) > MAX_URL_CHARS
            or not url.isascii()
            or not url.isprintable()
            or " " in url
        ):
            raise InvalidValue(
                f"url must be percent-encoded ASCII of up to {MAX_URL_CHARS:,} characters, without spaces."
            )
        try:
            parts = urlsplit(url)
        except ValueError:
            parts = urlsplit("")
        if parts.scheme != "https" or "\\" in url:
            raise InvalidValue("Only whole https URLs are fetched, such as https://example.com/page.")
        host = parts.netloc.lower().removesuffix(f":{PORT}")
        if host not in self._hosts:
            raise InvalidValue(f"{parts.netloc!r:.80} is not one of the hosts that this client may fetch from.")
        return host, (parts.path or "/") + (f"?{parts.query}" if parts.query else "")

    def _run_exchange(self, host: str, path: str, held: Callable[[socket.socket], None]) -> str:
        try:
            return self._request_text(host, path, held)
        except HoldfastError:
            raise
        except ssl.SSLCertVerificationError:
            raise Refused(f"The certificate that {host} showed is not one for it. Nothing was asked for.") from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise Unavailable(f"{host} could not be reached, or broke off: {type(error).__name__}.") from None

    def _request_text(self, host: str, path: str, held: Callable[[socket.socket], None]) -> str:
        context = self._context or ssl.create_default_context()
        plain = self._connect_first(self._resolve_public(host))
        try:
            held(plain)
            # A connection that ends without a TLS close means that the text was cut off.
            secure = context.wrap_socket(
                plain, server_hostname=host, do_handshake_on_connect=False, suppress_ragged_eofs=False
            )
        except BaseException:
            plain.close()
            raise
        with secure:
            held(secure)
            secure.do_handshake()
            connection = http.client.HTTPSConnection(host, PORT, context=context)
            connection.sock, connection.auto_open = secure, 0
            connection.request("GET", path, headers=_HEADERS)
            with connection.getresponse() as response:
                return _read_text(host, response, self._max_bytes)

    def _resolve_public(self, host: str) -> list[str]:
        """Resolve a host once. One address that is not public is enough to refuse it."""
        found = list(dict.fromkeys(self._resolve(host, PORT)))
        if not found or not all(is_public(address) for address in found):
            raise Refused(f"{host} is not at public addresses alone, so nothing is fetched from it.")
        return found[:MAX_ADDRESSES]

    def _connect_first(self, addresses: Sequence[str]) -> socket.socket:
        *others, last = addresses
        for address in others:
            try:
                return self._connect(address, PORT, self._timeout)
            except OSError:
                continue  # The next address may be reachable.
        return self._connect(last, PORT, self._timeout)

    def __repr__(self) -> str:
        return f"HttpsFetcher({sorted(self._hosts)})"


class _Exchange(threading.Thread):
    """A thread for one exchange, so that the caller stops waiting when the time is up."""

    def __init__(self, work: Callable[[Callable[[socket.socket], None]], str]) -> None:
        super().__init__(daemon=True, name="holdfast-fetch")
        self._work = work
        self._gate = threading.Lock()
        self._held: socket.socket | None = None
        self._over = False
        self._text: str | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """Run the exchange and keep its text or its error."""
        try:
            self._text = self._work(self._hold_socket)
        except BaseException as error:  # noqa: BLE001  raised where the caller waits
            self._error = error

    def _hold_socket(self, sock: socket.socket) -> None:
        with self._gate:
            if self._over:
                sock.close()
                raise TimeoutError
            self._held = sock

    def result(self, late: str) -> str:
        """Return the text or raise the error; if the exchange is still running, shut its connection down."""
        with self._gate:
            # Read before the shutdown, which raises an error in the thread.
            text, error, self._over = self._text, self._error, True
            if self.is_alive():
                shut_down(self._held)
        if text is not None:
            return text
        raise error or Unavailable(late)


def shut_down(sock: socket.socket | None) -> None:
    """End a connection that another thread reads from; ignore one that is closed."""
    if sock is not None:
        with suppress(OSError):
            # Below TLS: the thread that reads must not find its own state changed.
            socket.socket.shutdown(sock, socket.SHUT_RDWR)


def _resolve(host: str, port: int) -> list[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


def _connect(address: str, port: int, timeout: float) -> socket.socket:
    """Connect to an address without another name lookup."""
    sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout)
        sock.connect((address, port))
    except BaseException:
        sock.close()
        raise
    return sock


def _check_hosts(given: object) -> frozenset[str]:
    """Check host names and return them in lower case; refuse addresses and patterns."""
    if isinstance(given, str) or not isinstance(given, Sequence | frozenset | set) or not given:
        raise InvalidValue("hosts must be a list of the host names that may be fetched from, such as docs.python.org.")
    for host in given:
        if not isinstance(host, str) or len(host) > 253 or not _HOST.fullmatch(host.lower()):
            raise InvalidValue(f"{host!r:.80} is not the full name of a host, such as docs.python.org.")
    return frozenset(host.lower() for host in given)


def _read_text(host: str, response: http.client.HTTPResponse, most: int) -> str:
    """Return the body of a response that is successful and text; raise for any other."""
    if response.status != http.client.OK:
        raise _status_error(host, response.status)
    kind, _, rest = (response.getheader("content-type") or "").partition(";")
    charset = (re.search(r'charset\s*=\s*"?([\w.-]+)', rest, re.ASCII | re.IGNORECASE) or ["", "utf-8"])[1].lower()
    encoding = response.getheader("content-encoding", "identity").strip().lower()
    if not _TEXT_TYPES.fullmatch(kind.strip().lower()) or charset not in _CHARSETS or encoding != "identity":
        raise InvalidValue(f"{host} gave something that is not plain text. Attach a text that was made from it.")
    try:
        text = _read_body(host, response, most).decode(charset)
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise InvalidValue(f"{host} gave text that is not {charset}, as it says. Attach it as body.")
    return text


def _read_body(host: str, response: http.client.HTTPResponse, most: int) -> bytes:
    found = bytearray()
    while len(found) <= most and (more := response.read(_CHUNK)):
        found += more
    if len(found) > most:
        raise TooLarge(f"{host} gave more than {most:,} bytes. Attach a part of it as body, or raise max_bytes.")
    if response.length:
        raise http.client.IncompleteRead(b"", response.length)
    return bytes(found)


def _status_error(host: str, status: int) -> HoldfastError:
    if 300 <= status < 400:
        return Refused(f"{host} leads elsewhere ({status}), and that is not followed. Attach where it leads to.")
    if status in _MISSING_STATUSES:
        return NotFound(f"{host} has no such page ({status}). Check the URL.")
    if status in _RETRY_STATUSES or status >= 500:
        return Unavailable(f"{host} answered {status}. Try again later.")
    return Refused(f"{host} answered {status}. Attach the text as body.")


def is_public(text: str) -> bool:
    """Return True if an address, as a resolver gives it, leads only to the public internet."""
    try:
        address = ip_address(text)
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.scope_id is not None:
        return False
    return all(_is_allocated(one) for one in unwrap_address(address))


def unwrap_address(address: IpAddress) -> tuple[IpAddress, ...]:
    """Return the addresses that an address leads to: those embedded in it, or itself. A Teredo address has two."""
    if isinstance(address, IPv4Address):
        return (address,)
    inner = address.ipv4_mapped or address.sixtofour
    if inner is not None:
        return (inner,)
    if address.teredo is not None:
        return address.teredo
    low = IPv4Address(int(address) & _LOW_32)
    if address in _NAT64:
        return (low,)
    # ISATAP and networks' own NAT64 prefixes embed an IPv4 address, and the prefix must be public as well.
    isatap = (low,) if int(address) >> 32 & _LOW_32 in _ISATAP else ()
    return (address, *isatap, *_translated_addresses(int(address)))


def _translated_addresses(address: int) -> Iterator[IPv4Address]:
    """Return the IPv4 addresses that a network may translate an address to, by any prefix of its own.

    Such a prefix is not known by its look, so every place is read where an IPv4 address can be. Small numbers are
    left out: they are interface ids, such as that of `2001:4860:4860::8888`.
    """
    if address >> 56 & 0xFF:  # These bits are 0 in all of them.
        return
    joined = address >> 64 << 56 | address & (1 << 56) - 1
    places = [zeros for zeros in _BEHIND_TRANSLATED if joined & (1 << zeros) - 1 == 0]
    for found in (IPv4Address(joined >> zeros & _LOW_32) for zeros in (*places, 0)):  # 0: a prefix of 96 bits.
        if found not in _THIS_NETWORK:
            yield found


def _is_allocated(address: IpAddress) -> bool:
    if address.is_multicast or not address.is_global:
        return False
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _NOT_PUBLIC_4)
    return address in _GLOBAL_6 and not any(address in network for network in _NOT_PUBLIC_6)
