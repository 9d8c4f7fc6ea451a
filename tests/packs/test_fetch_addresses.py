"""Where the fetcher never connects to: hostile addresses, names and URLs open no socket, also if they are wrapped."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import Refused, Unavailable
from holdfast.errors import HoldfastError, InvalidValue
from holdfast.extras import https as module
from holdfast.extras.https import HttpsFetcher, is_public
from tests.packs.web_server import HOST, PUBLIC, URL, Sockets, fetcher
from tests.scale import volume

HOSTILE_ADDRESSES = [
    # this host and this network
    "127.0.0.1", "127.255.255.254", "0.0.0.0", "0.1.2.3", "::1", "::",
    # private, shared, link-local; metadata of clouds
    "10.0.0.1", "10.255.255.255", "172.16.0.1", "172.31.255.255", "192.168.0.1", "192.168.255.255", "100.64.0.1",
    "100.100.100.200", "169.254.0.1", "169.254.169.254", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fc00::1",
    "fdff::1", "fe80::1", "fe80::1%1", "febf::1", "fec0::1", "feff::1",
    # documentation, measuring, relays, reserved
    "192.0.2.1", "198.51.100.1", "203.0.113.1", "198.18.0.1", "198.19.255.255", "192.88.99.1", "192.0.0.8",
    "2001:db8::1", "3fff::1", "2001:2::1", "2001:10::1", "2001:20::1", "100::1", "5f00::1", "240.0.0.1",
    # name servers for private networks, and multicast relays
    "192.31.196.1", "192.175.48.1", "192.52.193.1", "2620:4f:8000::1", "2001:4:112::1",
    # everybody at once
    "224.0.0.1", "239.255.255.255", "255.255.255.255", "ff02::1", "ff0e::1",
    # one address in another: mapped, compatible, NAT64, 6to4, Teredo, ISATAP
    "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:a9fe:a9fe", "::127.0.0.1", "::ffff:0:127.0.0.1",
    "64:ff9b::7f00:1", "64:ff9b::169.254.169.254", "64:ff9b:1::a00:1", "2002:7f00:1::", "2002:a9fe:a9fe::1",
    "2002:c0a8:1::1", "2001:0:7f00:1::", "2001:0:5db8:d822:0:0:80ff:fffe", "2001:0:5db8:d822:0:0:5601:5601",
    "2606:4700::5efe:10.0.0.1", "2606:4700::200:5efe:127.0.0.1", "2001:67c:2b0:db32:0:1:a00:1", "2606:4700:7f00:1::",
    # what a resolver should not give, and some libraries take
    "0x7f000001", "2130706433", "0177.0.0.1", "127.1", "127.0.0.1 ", "①②⑦.0.0.1", "localhost", "", "93.184.216.34:443",
]  # fmt: skip

HOSTILE_URLS = [
    # not https, or not whole
    f"http://{HOST}/", f"HTTP://{HOST}/", f"//{HOST}/", f"{HOST}/page", f"https:{HOST}/", f"https:/{HOST}/", "https:///x",
    "https://", "", "file:///etc/passwd", f"ftp://{HOST}/", "gopher://127.0.0.1:70/", "data:text/plain,x",
    f"javascript:https://{HOST}/", f"wss://{HOST}/",
    # another host
    "https://evil.example/", f"https://{HOST}.evil.example/", f"https://evil.{HOST}/", f"https://{HOST}./",
    f"https://x{HOST}/", "https://example.com/", "https://localhost/", "https://metadata.google.internal/",
    # addresses, in every way of writing them
    "https://127.0.0.1/", "https://[::1]/", "https://[::ffff:127.0.0.1]/", "https://0x7f000001/", "https://2130706433/",
    "https://0177.0.0.1/", "https://127.1/", "https://①②⑦.0.0.1/", "https://[fe80::1%25eth0]/", "https://[v1.x]/",
    "https://169.254.169.254/latest/meta-data/", "https://[64:ff9b::7f00:1]/", f"https://{PUBLIC}/", "https://[::1/",
    # users, ports and what parsers disagree on
    f"https://user@{HOST}/", f"https://user:pass@{HOST}/", f"https://{HOST}@evil.example/",
    f"https://evil.example#@{HOST}/", f"https://evil.example\\@{HOST}/", f"https://{HOST}\\.evil.example/",
    f"https://{HOST}:80/", f"https://{HOST}:8443/", f"https://{HOST}:0443/", f"https://{HOST}:443:443/", f"https://{HOST}:/",
    f"https://{HOST}:x/", f"https://{HOST};evil.example/", f"https://{HOST},evil.example/", f"https://{HOST}%00.evil.example/",
    f"https://{HOST}%2eevil.example/", f"https://{HOST}\u3002evil.example/", "https://ⓓocs.example.com/",
    # what would end up in the request
    f"https://{HOST}/a b", f"https://{HOST}/a\r\nhost: evil", f"https://{HOST}/\x00", f"https://{HOST}/ü",
    f"https:// {HOST}/", f" https://{HOST}/", f"https://{HOST}/\t", f"https://{HOST}\n/",
    f"https://{HOST}/{'a' * 5_000}",
]  # fmt: skip


@pytest.fixture(autouse=True)
def real_sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Whatever really is connected to, by whichever way: nothing but this machine's own server."""
    seen: list[Any] = []
    real = socket.socket.connect

    def connect(self: socket.socket, address: Any) -> None:
        seen.append(address)
        assert address[0] == "127.0.0.1", "a test must not leave this machine"
        real(self, address)

    monkeypatch.setattr(socket.socket, "connect", connect)
    yield seen
    assert all(address[0] == "127.0.0.1" for address in seen)


# addresses


def test_there_are_enough_hostile_forms() -> None:
    assert len(set(HOSTILE_ADDRESSES)) >= 60
    assert len(set(HOSTILE_URLS)) >= 60


@pytest.mark.parametrize("address", HOSTILE_ADDRESSES)
def test_no_socket_is_opened_where_an_address_is_not_public(address: str, real_sockets: list[Any]) -> None:
    """Alone, before and after a public one: the connection would go to one of them by chance."""
    for found in ([address], [PUBLIC, address], [address, PUBLIC]):
        sockets = Sockets()
        with pytest.raises(Refused, match="public"):
            fetcher(resolve=lambda host, port, found=found: found, connect=sockets.connect).fetch(URL)
        with pytest.raises(Refused, match="public"):
            fetcher(resolve=lambda host, port, found=found: found).fetch(URL)
        assert sockets.opened == []
        assert real_sockets == []


@pytest.mark.parametrize(
    "address",
    ["93.184.216.34", "8.8.8.8", "172.32.0.1", "2606:4700::1", "2a00:1450:4001::1", "::ffff:8.8.8.8",
     "64:ff9b::808:808", "2002:808:808::1", "2606:4700::5efe:808:808", "2001:4860:4860::8888", "2606:4700::6810:84e5",
     "2a00:1450:4001:81b::200e", "2a04:4e42::645", "2001:67c:2b0:db32:0:1:808:808", "2620:0:862:ed1a::1"],
)  # fmt: skip
def test_public_addresses_are_connected_to_also_where_they_are_wrapped(address: str) -> None:
    sockets = Sockets()
    with pytest.raises(Unavailable):
        fetcher(resolve=lambda host, port: [address], connect=sockets.connect).fetch(URL)
    assert sockets.opened == [address]


PRIVATE = st.one_of(
    st.ip_addresses(v=4, network="10.0.0.0/8"),
    st.ip_addresses(v=4, network="127.0.0.0/8"),
    st.ip_addresses(v=4, network="169.254.0.0/16"),
    st.ip_addresses(v=4, network="172.16.0.0/12"),
    st.ip_addresses(v=4, network="192.168.0.0/16"),
    st.ip_addresses(v=4, network="224.0.0.0/3"),
)


def wrappings(inner: IPv4Address, noise: int) -> list[IPv6Address]:
    """Every way in which an IPv6 address leads to an IPv4 address."""
    low, high = int(inner), noise & 0xFFFF_FFFF
    return [
        IPv6Address(0xFFFF << 32 | low),
        IPv6Address(0x64_FF9B << 96 | low),
        IPv6Address(0x2002 << 112 | low << 80 | noise & (1 << 80) - 1),
        IPv6Address(0x2001_0000 << 96 | low << 64 | high),
        IPv6Address(0x2001_0000 << 96 | 0x0808_0808 << 64 | low ^ 0xFFFF_FFFF),
        IPv6Address(0x2606_4700 << 96 | 0x5EFE << 32 | low),
        *(translated(inner, prefix, noise) for prefix in (32, 40, 48, 56, 64, 96)),
    ]


def translated(inner: IPv4Address, prefix: int, noise: int) -> IPv6Address:
    """An address behind a network's own NAT64 prefix (RFC 6052), of which bits 64 to 71 are 0."""
    own = (0x2606_4700 << 96 | noise & (1 << 96) - 1) >> 128 - prefix << 128 - prefix
    if prefix == 96:
        return IPv6Address(own & ~(0xFF << 56) | int(inner))
    joined = own >> 64 << 56 | int(inner) << 88 - prefix
    return IPv6Address(joined >> 56 << 64 | joined & (1 << 56) - 1)


@settings(max_examples=volume(200, 20_000), deadline=None)
@given(PRIVATE, st.integers(0, 2**96))
def test_wrapping_a_private_address_in_any_way_does_not_make_it_public(inner: IPv4Address, noise: int) -> None:
    assert not is_public(str(inner))
    for wrapped in wrappings(inner, noise):
        assert not is_public(str(wrapped)), wrapped


def test_a_network_specific_prefix_that_is_not_unwrapped_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_translated_addresses", lambda address: ())
    leaks = [one for one in wrappings(IPv4Address("10.0.0.1"), 7 << 70) if is_public(str(one))]
    assert len(leaks) == 6


@settings(max_examples=volume(200, 20_000), deadline=None)
@given(st.ip_addresses())
def test_nothing_is_public_that_python_calls_private(address: IPv4Address | IPv6Address) -> None:
    wrapped = isinstance(address, IPv6Address) and module.unwrap_address(address) != (address,)
    if is_public(str(address)) and not wrapped:
        assert address.is_global
        assert not any((address.is_multicast, address.is_loopback, address.is_link_local, address.is_private))


@pytest.mark.parametrize(
    "planted",
    [
        lambda text: ip_address(text).is_global,
        lambda text: not ip_address(text).is_private,
        lambda text: not ip_address(text.removeprefix("::ffff:")).is_private,
    ],
    ids=["outer address only", "not private", "only mapped is unwrapped"],
)
def test_a_check_that_does_not_unwrap_is_noticed(
    planted: Callable[[str], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "is_public", planted)
    leaks = []
    for address in HOSTILE_ADDRESSES:
        sockets = Sockets()
        with pytest.raises(HoldfastError):
            fetcher(resolve=lambda host, port, address=address: [address], connect=sockets.connect).fetch(URL)
        leaks += sockets.opened
    assert {"64:ff9b::7f00:1", "2002:7f00:1::", "224.0.0.1"} <= set(leaks)


def test_a_name_is_looked_up_once_and_the_connection_goes_to_what_was_checked() -> None:
    """A name that changes its mind between the check and the connection gains nothing."""
    sockets, asked = Sockets(), list[str]()

    def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        return [PUBLIC, "93.184.216.35"] if len(asked) == 1 else ["127.0.0.1"]

    with pytest.raises(Unavailable):
        fetcher(resolve=resolve, connect=sockets.connect).fetch(URL)
    assert (asked, sockets.opened) == ([HOST], [PUBLIC, "93.184.216.35"])


# URLs and hosts


@pytest.mark.parametrize("url", HOSTILE_URLS)
def test_a_url_that_is_not_plainly_one_of_an_allowed_host_is_not_even_looked_up(
    url: str, real_sockets: list[Any]
) -> None:
    looked, sockets = list[str](), Sockets()

    def resolve(host: str, port: int) -> list[str]:
        looked.append(host)
        return [PUBLIC]

    with pytest.raises(InvalidValue):
        fetcher(resolve=resolve, connect=sockets.connect).fetch(url)
    assert (looked, sockets.opened, real_sockets) == ([], [], [])


@pytest.mark.parametrize("url", [None, 7, b"https://docs.example.com/", ["https://docs.example.com/"]])
def test_a_url_is_text(url: Any) -> None:
    with pytest.raises(InvalidValue):
        fetcher().fetch(url)


@pytest.mark.parametrize(
    "hosts",
    [[], "docs.example.com", None, 7, [7], [""], ["localhost"], ["127.0.0.1"], ["[::1]"], ["*.example.com"], ["0x7f.1"],
     ["1.2.3.0x4"], ["a..com"], [".example.com"], ["example.com."], ["ex ample.com"], ["https://example.com"],
     ["example.com/"], ["example.com:443"], ["-a.com"], ["a-.com"], [f"{'a' * 64}.com"], ["ü.com"],
     ["a.com\n"], ["a_b.com"]],
)  # fmt: skip
def test_hosts_are_full_names_and_nothing_else(hosts: Any) -> None:
    with pytest.raises(InvalidValue):
        HttpsFetcher(hosts)
