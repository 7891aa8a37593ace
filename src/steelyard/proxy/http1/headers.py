"""Headers: which go on, which are read, and which end at this connection."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Final

HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""RFC 9110, 7.6.1: for one connection only. What `Connection` lists is added per message."""

RELAY: Final = 0
READ: Final = 1
TAKE: Final = 2
"""Dispositions of a header: passed on; passed on and read; read and not passed on (dropped, or written anew)."""

CACHED_NAMES: Final = 1024
"""Spellings of header names whose disposition is remembered; names come from clients, so there is a bound."""
CACHED_NAME: Final = 64
"""Longest spelling, in bytes, that is remembered. Real names are shorter; others are not to fill the memory."""


class HeaderTable:
    """What is to be done with a header, by its name in any spelling."""

    __slots__ = ("_by_name", "_prefixes", "known")

    def __init__(self, read: Iterable[bytes], take: Iterable[bytes], take_prefixes: Iterable[bytes] = ()) -> None:
        self._by_name: dict[bytes, int] = dict.fromkeys(read, READ)
        self._by_name.update(dict.fromkeys(take, TAKE))
        self._by_name.update(dict.fromkeys(HOP_BY_HOP, TAKE))
        self._prefixes = tuple(take_prefixes)
        self.known: dict[bytes, tuple[bytes, int]] = {}
        """The answers of `classify` so far, for whoever is in a hurry."""

    def classify(self, spelling: bytes) -> tuple[bytes, int]:
        """(lower-case name, disposition) of a header name in any spelling."""
        name = spelling.lower()
        disposition = self._by_name.get(name, RELAY)
        if disposition == RELAY and self._prefixes and name.startswith(self._prefixes):
            disposition = TAKE
        found = (name, disposition)
        if len(spelling) > CACHED_NAME:
            return found
        if len(self.known) >= CACHED_NAMES:
            self.known.clear()
        self.known[spelling] = found
        return found


class MessageError(ValueError):
    """What the peer sent is not HTTP/1.1, or breaks a limit. `code` is one of the error codes of the gateway."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


_USUAL: Final = frozenset({b"keep-alive", b"close", b"Keep-Alive", b"Close"})


def drop_listed(relay: list[bytes], connection: bytes) -> None:
    """Take out of `relay` (name, b": ", value, CRLF, ...) what a Connection header lists, in place.

    Not Content-Length: a message without it would have no end.
    """
    if connection in _USUAL:
        return
    tokens = {token.strip() for token in connection.lower().split(b",")}
    tokens -= {b"close", b"keep-alive", b"content-length", b""}
    if not tokens:
        return
    relay[:] = without(relay, tokens)


def without(relay: list[bytes], names: Container[bytes], prefixes: tuple[bytes, ...] = ()) -> list[bytes]:
    """`relay` (name, b": ", value, CRLF, ...) without the lines of these names, in lower case, or that begin so."""
    kept: list[bytes] = []
    for start in range(0, len(relay), 4):
        name = relay[start].lower()
        if name not in names and not name.startswith(prefixes):
            kept += relay[start : start + 4]
    return kept


def only_chunked(coding: bytes, code: str) -> bool:
    """True for the one transfer coding that is understood here. Raises MessageError for others, such as gzip."""
    if coding.strip().lower() != b"chunked":
        raise MessageError(code, f"the transfer coding {coding.decode('latin-1')!r} is not supported, only chunked")
    return True
