"""Addresses as people write them: where to listen, where a node is, which networks are trusted."""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple
from urllib.parse import urlsplit

_LABEL = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST = re.compile(rf"{_LABEL}(\.{_LABEL})*\.?")
_DIGITS_AND_DOTS = re.compile(r"[0-9.]+")
_PORTS = {"http": 80, "https": 443}


Network = ipaddress.IPv4Network | ipaddress.IPv6Network


UNIX = "unix:"
LONGEST_SOCKET = 107
"""Bytes of the path of a Unix socket that Linux takes."""


class Address(NamedTuple):
    """Where to listen. Port 0 takes any free port."""

    host: str
    """A host name, an IPv4 address or an IPv6 address without brackets; of a Unix socket `unix:` and its path."""
    port: int

    @property
    def path(self) -> str | None:
        """The path of a Unix socket; None for others."""
        return self.host.removeprefix(UNIX) if self.host.startswith(UNIX) else None

    def __str__(self) -> str:
        if self.path is not None:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def loopback(self) -> bool:
        """Whether only this machine can connect."""
        if self.path is not None:
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


class NodeUrl(NamedTuple):
    """The parts of a node's URL."""

    scheme: str
    """http or https."""
    host: str
    """Lower case; an IPv6 address without brackets."""
    port: int
    path: str
    """The prefix of every path that is asked for there, without a trailing slash; empty where there is none."""

    @property
    def authority(self) -> str:
        """host:port, the port always said."""
        return str(Address(self.host, self.port))

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == _PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}{self.path}"


def parse_address(value: object) -> Address:
    """An address to listen on: '0.0.0.0:8080', '[::1]:8080', 'localhost:8080', ':8080' (every interface) or
    'unix:/run/steelyard.sock'.

    Raises ValueError, naming the value and the right forms.
    """
    wrong = f"{value!r} is not an address to listen on; write e.g. 0.0.0.0:8080 or [::1]:8080"
    if isinstance(value, Address):
        return value
    if not isinstance(value, str):
        raise ValueError(wrong)
    if value.startswith(UNIX):
        if not 1 < len(value.encode()) - len(UNIX) <= LONGEST_SOCKET or not value.isprintable():
            raise ValueError(f"{value!r} names no socket; write e.g. unix:/run/steelyard.sock ({LONGEST_SOCKET} bytes)")
        return Address(value, 0)
    if "://" in value:
        raise ValueError(f"{wrong} (without a scheme)")
    host, colon, port = value.strip().rpartition(":")
    number = _port(port)
    if not colon or number is None:
        if colon and port.isascii() and port.isdigit():
            raise ValueError(f"{value!r} has the port {port}; a port is a number up to 65535")
        raise ValueError(wrong)
    if not host:
        return Address("0.0.0.0", number)
    bare = _bare_host(host)
    if bare is None:
        raise ValueError(wrong)
    return Address(bare, number)


def parse_node_url(value: object) -> NodeUrl:
    """The URL of a node: http or https, a host, perhaps a port and a path prefix.

    'host:port' without a scheme is taken as http, since that is how engines print their address. A trailing slash is
    dropped. Raises ValueError, naming the value and the right forms.
    """
    right = "write e.g. http://10.0.0.1:8000"
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{value!r} is not the URL of a node; {right}")
    text = value.strip()
    if "://" not in text:
        text = "http://" + text
    if any(character.isspace() or not character.isprintable() for character in text):
        raise ValueError(f"{value!r} has a space or a control character in it; {right}")
    try:
        parts = urlsplit(text)
        port_text = parts.netloc.rpartition("@")[2].rpartition("]")[2].partition(":")[2]
        userinfo = "@" in parts.netloc
    except ValueError:
        raise ValueError(f"{value!r} is not the URL of a node; {right}") from None
    scheme = parts.scheme.lower()
    if scheme not in _PORTS:
        raise ValueError(f"{value!r} has the scheme {parts.scheme!r}; a node speaks http or https, {right}")
    if userinfo:
        # The value is not repeated: it holds a password.
        raise ValueError(f"a user or password in the URL is refused; write it as api_key, and {right[6:]} as the URL")
    if parts.query or parts.fragment or text.endswith(("?", "#")):
        raise ValueError(f"{value!r} has a query or a fragment; a node's URL ends with its path, {right}")
    host = _bare_host(
        parts.netloc.partition(":")[0] if parts.netloc[:1] != "[" else parts.netloc.partition("]")[0] + "]"
    )
    if host is None:
        raise ValueError(f"{value!r} has no valid host name; {right}")
    port = _PORTS[scheme]
    if port_text:
        number = _port(port_text)
        if not number:
            raise ValueError(f"{value!r} has the port {port_text!r}; a port is 1 to 65535, {right}")
        port = number
    if not parts.path.isascii():
        raise ValueError(f"{value!r} has a path that is not ASCII; write such characters as %XX, {right}")
    return NodeUrl(scheme, host.lower(), port, parts.path.rstrip("/"))


def parse_network(value: object) -> Network:
    """A network or a single address: '10.0.0.0/8', '192.0.2.7', '2001:db8::/32'.

    Raises ValueError, naming the value and the right form.
    """
    if isinstance(value, ipaddress.IPv4Network | ipaddress.IPv6Network):
        return value
    if isinstance(value, str):
        try:
            return ipaddress.ip_network(value.strip())
        except ValueError:
            pass
        try:
            nearest = ipaddress.ip_network(value.strip(), strict=False)
        except ValueError:
            pass
        else:
            raise ValueError(f"{value!r} names a host inside a network; write {nearest} for the network")
    raise ValueError(f"{value!r} is not a network; write e.g. 10.0.0.0/8 or 192.0.2.7")


def _port(text: str) -> int | None:
    if not text.isascii() or not text.isdigit() or len(text) > 5 or int(text) > 65535:
        return None
    return int(text)


def _bare_host(host: str) -> str | None:
    """``host`` without the brackets of IPv6, or None when it is neither a name nor an address."""
    try:
        if host.startswith("[") and host.endswith("]"):
            return str(ipaddress.IPv6Address(host[1:-1]))
        if _DIGITS_AND_DOTS.fullmatch(host):
            return str(ipaddress.IPv4Address(host))
    except ValueError:
        return None
    return host if len(host) <= 253 and _HOST.fullmatch(host) else None
