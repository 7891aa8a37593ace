"""Who may use the admin API: Host, Origin and token are checked before anything else, and the body's size."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import msgspec
import structlog

from steelyard.config.addresses import Address
from steelyard.config.errors import ConfigError, Problem
from steelyard.config.load import HOSTS_VARIABLE, TOKEN_VARIABLE

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN_PATHS = frozenset({"/health", "/ready", "/metrics"})
"""What probes and scrapers read, from wherever they are."""
BODY_AT_MOST = 1 << 20
"""Bytes of a request's body. What is explained is a request, and those that matter are small."""
EVERY_INTERFACE = frozenset({"0.0.0.0", "::"})


class Denied(Exception):
    """The request is not served."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


@dataclass(frozen=True, slots=True)
class Access:
    """The rules of one listener."""

    token: bytes | None = field(default=None, repr=False)
    """What `Authorization: Bearer` must carry; None: nothing is asked for."""
    hosts: frozenset[str] = frozenset()
    """Names besides those of this machine that a Host header may have, in lower case."""

    @classmethod
    def of(cls, environment: Mapping[str, str], host: str) -> Access:
        """The rules for a listener on `host`. Raises ConfigError where everybody could steer the gateway."""
        token = environment.get(TOKEN_VARIABLE, "").strip()
        if not token and not Address(host, 0).loopback:
            message = (
                f"{host} can be reached from other machines, so the admin API needs a token: set {TOKEN_VARIABLE}, or "
                "listen on 127.0.0.1"
            )
            raise ConfigError([Problem(TOKEN_VARIABLE, 0, "admin", message)])
        names = environment.get(HOSTS_VARIABLE, "").replace(",", " ").split()
        if host not in EVERY_INTERFACE:
            names.append(host)
        return cls(token.encode() or None, frozenset(name.lower().strip("[]") for name in names))

    def check(self, headers: Iterable[tuple[bytes, bytes]], local: str | None) -> None:
        """Raises Denied unless a request with these headers (names in lower case) may be served.

        `local` is the address of this side of the connection.
        """
        found: dict[bytes, list[bytes]] = {}
        for name, value in headers:
            if name in (b"host", b"origin", b"authorization"):
                found.setdefault(name, []).append(value)
        host = self._check_host(found.get(b"host", []), local)
        for origin in found.get(b"origin", []):
            if not same_origin(origin.decode("latin-1"), host):
                raise Denied(403, "forbidden", "this request comes from a page of another site (Origin)")
        if self.token is not None:
            self._check_token(found.get(b"authorization", []))

    def _check_host(self, values: list[bytes], local: str | None) -> str:
        # A page in a browser can make a name of its own resolve to 127.0.0.1 (DNS rebinding). It cannot choose what
        # its browser writes into Host.
        if len(values) != 1:
            raise Denied(403, "forbidden", f"the request needs one Host header, it has {len(values)}")
        host = values[0].decode("latin-1").lower()
        name = host_name(host)
        if not (is_loopback(name) or name in self.hosts or (local is not None and name == local.lower())):
            message = f"the Host header names {name!r}, which is not an address of this listener"
            raise Denied(403, "forbidden", f"{message}; {HOSTS_VARIABLE} lists further names that are right")
        return host

    def _check_token(self, values: list[bytes]) -> None:
        if not values:
            raise Denied(401, "missing_token", f"the admin token is needed: Authorization: Bearer <{TOKEN_VARIABLE}>")
        scheme, _, given = values[0].partition(b" ")
        assert self.token is not None
        right = hmac.compare_digest(given.strip(), self.token)
        if not right or scheme.lower() != b"bearer" or len(values) != 1:
            raise Denied(401, "invalid_token", "the admin token is not right")


def host_name(host: str) -> str:
    """The name in a Host header, without port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def is_loopback(name: str) -> bool:
    """Whether a name always means this machine."""
    if name in ("localhost", "localhost."):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def same_origin(origin: str, host: str) -> bool:
    """Whether an Origin header names what the Host header (lower case) names."""
    try:
        parts = urlsplit(origin.lower())
        port = parts.port
        host_port = urlsplit(f"//{host}").port
    except ValueError:
        return False
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return False
    default = 443 if parts.scheme == "https" else 80
    return parts.hostname == host_name(host) and (port or default) == (host_port or default)


class Guard:
    """ASGI middleware: lets through what `Access` allows, with its body read, and makes errors JSON."""

    def __init__(self, app: App, access: Access) -> None:
        self._app = app
        self._access = access
        self._log = structlog.get_logger("steelyard.admin")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        answer = Answer(send)
        try:
            received: Receive | None = receive
            if scope["path"] not in OPEN_PATHS:
                server = scope.get("server")
                self._access.check(scope["headers"], server[0] if server else None)
                received = await read_body(scope, receive)
            if received is not None:
                await self._app(scope, received, answer)
        except Denied as denied:
            await answer.error(denied.status, denied.code, str(denied))
        except Exception:
            self._log.exception("an admin request failed", method=scope["method"], path=scope["path"])
            if answer.started:
                raise
            await answer.error(500, "internal_error", "the request failed; the log says why")


class Answer:
    """An ASGI `send` that adds the headers every answer has, and can send an error instead."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            message["headers"] = [
                *message.get("headers", []),
                (b"cache-control", b"no-store"),
                (b"x-content-type-options", b"nosniff"),
            ]
        await self._send(message)

    async def error(self, status: int, code: str, message: str) -> None:
        body = error_body(code, message)
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        if status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        if status == 413:
            # What is left of the body is not read.
            headers.append((b"connection", b"close"))
        await self({"type": "http.response.start", "status": status, "headers": headers})
        await self({"type": "http.response.body", "body": body})


def error_body(code: str, message: str) -> bytes:
    """The JSON of an error."""
    return msgspec.json.encode({"error": {"code": code, "message": message}})


async def read_body(scope: Scope, receive: Receive) -> Receive | None:
    """Read the whole body, and return a `receive` that gives it. None when the client left. Raises Denied (413)."""
    too_large = Denied(413, "body_too_large", f"the body is larger than {BODY_AT_MOST} bytes")
    for name, value in scope["headers"]:
        if name == b"content-length" and (not value.isdigit() or int(value) > BODY_AT_MOST):
            raise too_large
    pieces: list[bytes] = []
    size = 0
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        if size > BODY_AT_MOST:
            raise too_large
        more = message.get("more_body", False)
    whole: list[Message] = [{"type": "http.request", "body": b"".join(pieces), "more_body": False}]

    async def replay() -> Message:
        return whole.pop() if whole else await receive()

    return replay
