"""Where a request says to which session it belongs."""

from __future__ import annotations

from collections.abc import Mapping

from steelyard.core.route import Route


def session_key(route: Route, read: Mapping[bytes, bytes], fields: Mapping[str, str]) -> str | None:
    """The session key that the first of the route's sources gives which is not empty; None when none does."""
    for kind, name in route.session_sources:
        if kind == "header":
            value = read.get(name.encode("latin-1"))
            if value:
                return value.decode("latin-1")
        elif kind == "body":
            if fields and fields.get(name):
                return fields[name]
        elif b"cookie" in read:
            found = cookie(read[b"cookie"], name.encode("latin-1"))
            if found:
                return found
    return None


def cookie(header: bytes, name: bytes) -> str:
    """The value of a cookie in a Cookie header; an empty text when it is not there."""
    for part in header.split(b";"):
        key, _, value = part.strip().partition(b"=")
        if key == name:
            return value.decode("latin-1")
    return ""
