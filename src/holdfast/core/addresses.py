"""Which network addresses are public: reachable by everybody, so that fetching from them tells nothing secret.

An address can be wrapped in another one, by translation or by a tunnel, and then leads where the inner one
does. Whatever is inside must be public too. The lists are written out because those of Python's own
`ipaddress` differ from release to release, and call some of these global.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

Address = IPv4Address | IPv6Address

_NOT_PUBLIC_4: Final = tuple(
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",
        "100.64.0.0/10",  # shared by carriers; metadata of one cloud
        "127.0.0.0/8",
        "168.63.129.16/32",  # another cloud's inside
        "169.254.0.0/16",  # link-local; metadata of most clouds
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",  # relays of 6to4
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",
    )
)
_GLOBAL_6: Final = IPv6Network("2000::/3")
"""The only part of IPv6 that is given out to networks of the internet."""
_NOT_PUBLIC_6: Final = tuple(
    IPv6Network(text)
    for text in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")  # protocols, documentation, 6to4
)
_NAT64: Final = IPv6Network("64:ff9b::/96")
_ISATAP: Final = frozenset({0x0000_5EFE, 0x0200_5EFE})
_LOW_32: Final = 0xFFFF_FFFF


def is_public(text: str) -> bool:
    """Whether an address, as a resolver gives it, leads to the internet and nowhere else."""
    try:
        address = ip_address(text)
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.scope_id is not None:
        return False
    return all(_is_given_out(one) for one in unwrapped(address))


def unwrapped(address: Address) -> tuple[Address, ...]:
    """Where an address leads: what it wraps, or itself. Of a Teredo address both ends count."""
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
    # An interface that stands for an IPv4 address, in a prefix that counts as well.
    return (address, low) if int(address) >> 32 & _LOW_32 in _ISATAP else (address,)


def _is_given_out(address: Address) -> bool:
    if address.is_multicast or not address.is_global:
        return False
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _NOT_PUBLIC_4)
    return address in _GLOBAL_6 and not any(address in network for network in _NOT_PUBLIC_6)
