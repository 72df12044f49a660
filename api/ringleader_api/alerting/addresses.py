"""The addresses that alerts may be sent to: none inside, unless the operator has named it."""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Self

Address = IPv4Address | IPv6Address
CLOUD = IPv4Address("168.63.129.16")
"""Azure's own, inside every machine there, and public by its number."""
NAT64 = IPv6Network("64:ff9b::/96")
IPV4_INSIDE = IPv6Network("64:ff9b:1::/48"), IPv6Network("::/96"), IPv6Network("::ffff:0:0:0/96")
"""Networks whose addresses stand for IPv4 ones: a NAT64's own, at places that only it knows, the compatible ones, which
nobody uses any more, and the translated ones."""
RESERVED = (
    IPv4Network("192.0.0.0/24"),  # Oracle's cloud has its metadata there
    IPv4Network("192.88.99.0/24"),
    IPv6Network("fec0::/10"),  # addresses of a site, before fc00::/7
    IPv6Network("100:0:0:1::/64"),
    IPv6Network("3fff::/20"),
    IPv6Network("5f00::/16"),
)
"""Networks for use inside, or for none, of which the ipaddress of some Python releases says that they are global."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """The places inside that the operator lets alerts reach: hosts by name, and networks."""

    hosts: frozenset[str] = frozenset()
    networks: tuple[IPv4Network | IPv6Network, ...] = ()

    @classmethod
    def of(cls, listed: str) -> Self:
        """Of names and networks, separated by commas. Raises ValueError: an entry is neither."""
        hosts: set[str] = set()
        networks: list[IPv4Network | IPv6Network] = []
        for entry in filter(None, (part.strip().lower() for part in listed.split(","))):
            try:
                networks.append(ipaddress.ip_network(entry))
            except ValueError:
                if "/" in entry or ":" in entry:
                    raise ValueError(f"{entry!r} is neither the name of a host nor a network") from None
                hosts.add(entry)
        return cls(frozenset(hosts), tuple(networks))

    def takes(self, host: str, address: Address) -> bool:
        """Whether a connection to `address`, which `host` leads to, may be made."""
        if host.lower() in self.hosts or not is_inside(address):
            return True
        return any(plain(address) in network for network in self.networks)


def is_inside(address: Address) -> bool:
    """Whether an address is one of this machine, its networks or its cloud, however it is written."""
    address = plain(address)
    if any(address in network for network in (*IPV4_INSIDE, *RESERVED)):
        return True
    return not address.is_global or address.is_multicast or address == CLOUD


def plain(address: Address) -> Address:
    """The IPv4 address that an IPv6 one stands for, if it does."""
    if isinstance(address, IPv6Address):
        if address in NAT64:
            return IPv4Address(int(address) & 0xFFFFFFFF)
        # Of its server and its client the latter, to which packets go in the end.
        teredo = address.teredo[1] if address.teredo is not None else None
        return address.ipv4_mapped or address.sixtofour or teredo or address
    return address


def parsed(found: Sequence[str]) -> list[Address]:
    """Addresses as a resolver gives them, each once. A link's zone tells nothing here: such addresses are inside."""
    return list(dict.fromkeys(ipaddress.ip_address(one.partition("%")[0]) for one in found))
