"""Who may use the admin API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from steelyard.admin.access import BODY_AT_MOST, HOSTS_VARIABLE, TOKEN_VARIABLE, Access, Denied, same_origin
from steelyard.admin.api import create_app
from steelyard.config.errors import ConfigError
from steelyard.config.reference import reference

from .building import ask, still_service

TOKEN = "correct-horse"
LOOPBACK = Access.of({}, "127.0.0.1")
WITH_TOKEN = Access.of({TOKEN_VARIABLE: TOKEN}, "127.0.0.1")
WIDE = Access.of({TOKEN_VARIABLE: TOKEN, HOSTS_VARIABLE: "gw.example, [2001:DB8::7]"}, "0.0.0.0")
GUARDED = ["/api/nodes", "/api/routes", "/api/queue", "/api/decisions", "/api/version", "/openapi.json", "/nothing"]


@pytest.fixture(autouse=True)
def log() -> Iterator[list[Any]]:
    with structlog.testing.capture_logs() as lines:
        yield lines


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.3.2.1"])
def test_on_loopback_no_token_is_needed(host: str) -> None:
    assert Access.of({}, host).token is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "gateway.example"])
@pytest.mark.parametrize("environment", [{}, {TOKEN_VARIABLE: ""}, {TOKEN_VARIABLE: " \n"}])
def test_off_loopback_a_token_is_needed_to_start(host: str, environment: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as caught:
        Access.of(environment, host)
    (line,) = str(caught.value).splitlines()
    assert TOKEN_VARIABLE in line
    assert host in line
    assert "127.0.0.1" in line


def test_a_token_from_a_file_may_end_with_a_newline() -> None:
    assert Access.of({TOKEN_VARIABLE: TOKEN + "\n"}, "0.0.0.0").token == TOKEN.encode()


def test_the_token_is_in_no_representation() -> None:
    assert TOKEN not in repr(WITH_TOKEN)


# (what it shows, access, headers, the address of this side, status or None when it is let through)
CASES: list[tuple[str, Access, dict[str, str], str, int | None]] = [
    ("loopback by address", LOOPBACK, {"host": "127.0.0.1:9901"}, "127.0.0.1", None),
    ("loopback by name", LOOPBACK, {"host": "localhost:9901"}, "127.0.0.1", None),
    ("names have no case", LOOPBACK, {"host": "LocalHost"}, "127.0.0.1", None),
    ("IPv6", LOOPBACK, {"host": "[::1]:9901"}, "::1", None),
    ("another port: forwarded through ssh or kubectl", LOOPBACK, {"host": "localhost:5000"}, "127.0.0.1", None),
    ("DNS rebinding", LOOPBACK, {"host": "evil.example:9901"}, "127.0.0.1", 403),
    ("a name that begins like loopback", LOOPBACK, {"host": "127.0.0.1.evil.example"}, "127.0.0.1", 403),
    ("a name that ends like loopback", LOOPBACK, {"host": "evil.localhost"}, "127.0.0.1", 403),
    ("an address that is another machine's", LOOPBACK, {"host": "10.0.0.1:9901"}, "127.0.0.1", 403),
    ("no Host", LOOPBACK, {}, "127.0.0.1", 403),
    ("an empty Host", LOOPBACK, {"host": ""}, "127.0.0.1", 403),
    ("nothing but a port", LOOPBACK, {"host": ":9901"}, "127.0.0.1", 403),
    ("brackets that do not close", LOOPBACK, {"host": "[::1"}, "127.0.0.1", None),
    ("its own page", LOOPBACK, {"host": "localhost:9901", "origin": "http://localhost:9901"}, "127.0.0.1", None),
    ("another site's page", LOOPBACK, {"host": "localhost:9901", "origin": "http://evil.example"}, "127.0.0.1", 403),
    ("another port's page", LOOPBACK, {"host": "localhost:9901", "origin": "http://localhost:80"}, "127.0.0.1", 403),
    ("a page from a file", LOOPBACK, {"host": "localhost:9901", "origin": "null"}, "127.0.0.1", 403),
    ("an empty Origin", LOOPBACK, {"host": "localhost:9901", "origin": ""}, "127.0.0.1", 403),
    ("a token that nobody asked for", LOOPBACK, {"host": "localhost", "authorization": "Bearer x"}, "127.0.0.1", None),
    ("set, the token counts on loopback too", WITH_TOKEN, {"host": "localhost"}, "127.0.0.1", 401),
    ("the token", WITH_TOKEN, {"host": "localhost", "authorization": f"Bearer {TOKEN}"}, "127.0.0.1", None),
    ("schemes have no case", WITH_TOKEN, {"host": "localhost", "authorization": f"bearer {TOKEN}"}, "127.0.0.1", None),
    ("a wrong token", WITH_TOKEN, {"host": "localhost", "authorization": "Bearer wrong"}, "127.0.0.1", 401),
    ("a longer token", WITH_TOKEN, {"host": "localhost", "authorization": f"Bearer {TOKEN}x"}, "127.0.0.1", 401),
    ("the beginning of it", WITH_TOKEN, {"host": "localhost", "authorization": "Bearer corr"}, "127.0.0.1", 401),
    ("an empty token", WITH_TOKEN, {"host": "localhost", "authorization": "Bearer "}, "127.0.0.1", 401),
    ("another scheme", WITH_TOKEN, {"host": "localhost", "authorization": f"Basic {TOKEN}"}, "127.0.0.1", 401),
    ("no scheme", WITH_TOKEN, {"host": "localhost", "authorization": TOKEN}, "127.0.0.1", 401),
    ("a token does not excuse Host", WITH_TOKEN, {"host": "a.b", "authorization": f"Bearer {TOKEN}"}, "127.0.0.1", 403),
    ("wide: the address that was called", WIDE, {"host": "10.2.3.4:9901"}, "10.2.3.4", 401),
    ("wide: another address", WIDE, {"host": "10.2.3.5:9901"}, "10.2.3.4", 403),
    ("wide: every interface is no name", WIDE, {"host": "0.0.0.0:9901"}, "10.2.3.4", 403),
    ("wide: a configured name", WIDE, {"host": "GW.example:9901"}, "10.2.3.4", 401),
    ("wide: a configured IPv6 address", WIDE, {"host": "[2001:db8::7]:9901"}, "10.2.3.4", 401),
]


@pytest.mark.parametrize(("access", "headers", "local", "status"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_host_origin_and_token(access: Access, headers: dict[str, str], local: str, status: int | None) -> None:
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    if status is None:
        access.check(raw, local)
        return
    with pytest.raises(Denied) as caught:
        access.check(raw, local)
    assert caught.value.status == status
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize("name", [b"host", b"authorization"])
def test_what_is_said_twice_is_not_believed(name: bytes) -> None:
    once = [(b"host", b"localhost"), (b"authorization", b"Bearer " + TOKEN.encode())]
    WITH_TOKEN.check(once, "127.0.0.1")
    twice = [*once, next(header for header in once if header[0] == name)]
    with pytest.raises(Denied):
        WITH_TOKEN.check(twice, "127.0.0.1")


@pytest.mark.parametrize(
    ("origin", "host", "same"),
    [
        ("http://localhost", "localhost:80", True),
        ("https://gw.example", "gw.example:443", True),
        ("https://gw.example", "gw.example", True),  # a proxy that ends TLS
        ("http://[::1]:9901", "[::1]:9901", True),
        ("http://localhost:9901", "127.0.0.1:9901", False),
        ("ftp://localhost:9901", "localhost:9901", False),
        ("http://localhost:99999", "localhost:9901", False),
        ("http://[::1", "localhost:9901", False),
    ],
)
def test_origins(origin: str, host: str, same: bool) -> None:
    assert same_origin(origin, host) is same


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_probes_and_scrapers_need_neither_token_nor_name(path: str, method: str) -> None:
    app = create_app(still_service(), WIDE)
    answer = ask(app, method, path, headers={"host": "anything.example", "origin": "http://evil.example"})
    assert answer.status_code == 200
    assert bool(answer.content) is (method == "GET")


@pytest.mark.parametrize("path", GUARDED)
def test_everything_else_is_guarded(path: str) -> None:
    app = create_app(still_service(), WITH_TOKEN)
    denied = ask(app, "GET", path)
    assert denied.status_code == 401
    assert denied.headers["www-authenticate"] == "Bearer"
    assert denied.json()["error"]["code"] == "missing_token"
    assert ask(app, "GET", path, headers={"host": "evil.example"}).status_code == 403
    allowed = ask(app, "GET", path, headers={"authorization": f"Bearer {TOKEN}"})
    assert allowed.status_code == (404 if path == "/nothing" else 200)


def test_a_page_of_another_site_steers_nothing() -> None:
    service = still_service()
    app = create_app(service, LOOPBACK)
    denied = ask(app, "POST", "/api/nodes/n0/drain", headers={"origin": "http://evil.example"})
    assert denied.status_code == 403
    assert service.gateway.balancer.fleet.nodes["n0"].state == "ready"
    assert ask(app, "POST", "/api/nodes/n0/drain", headers={"origin": "http://127.0.0.1:9901"}).status_code == 200
    assert service.gateway.balancer.fleet.nodes["n0"].state == "draining"


def test_no_answer_allows_other_sites_to_read_it() -> None:
    answer = ask(create_app(still_service(), LOOPBACK), "GET", "/api/nodes")
    assert not [name for name in answer.headers if name.startswith("access-control-")]
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_body_of_more_than_1_mib_is_refused() -> None:
    app = create_app(still_service(), LOOPBACK)

    def explained(size: int, chunked: bool) -> int:
        start, end = b'{"path":"/v1/chat/completions","body":"', b'"}'
        body = start + b"x" * (size - len(start) - len(end)) + end

        async def pieces() -> Any:
            for at in range(0, size, 65536):
                yield body[at : at + 65536]

        content, headers = pieces() if chunked else body, {"content-type": "application/json"}
        return ask(app, "POST", "/api/explain", content=content, headers=headers).status_code

    for chunked in (False, True):
        assert explained(BODY_AT_MOST, chunked) == 400  # it was read: xxx is no JSON
        assert explained(BODY_AT_MOST + 1, chunked) == 413


def test_a_body_that_is_too_large_is_refused_before_it_comes() -> None:
    app = create_app(still_service(), LOOPBACK)
    sent: list[Any] = []

    async def receive() -> Any:
        raise AssertionError("the body is read")

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"content-length", b"%d" % (BODY_AT_MOST + 1))]
    scope = {"type": "http", "method": "POST", "path": "/api/explain", "headers": headers, "query_string": b""}
    asyncio.run(app(scope, receive, send))
    assert sent[0]["status"] == 413
    assert (b"connection", b"close") in sent[0]["headers"]
    assert json.loads(sent[1]["body"])["error"]["code"] == "body_too_large"


def test_a_client_that_leaves_before_its_body_is_whole_is_forgotten() -> None:
    app = create_app(still_service(), LOOPBACK)
    messages = [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        raise AssertionError("it is answered")

    scope = {"type": "http", "method": "POST", "path": "/api/explain", "headers": [(b"host", b"localhost")]}
    asyncio.run(app(scope | {"query_string": b""}, receive, send))
    assert messages == []


def test_what_fails_inside_is_logged_and_tells_the_client_nothing(log: list[Any]) -> None:
    service = still_service()
    app = create_app(service, LOOPBACK)
    del service.gateway
    answer = ask(app, "GET", "/api/nodes")
    assert answer.status_code == 500
    assert answer.json() == {"error": {"code": "internal_error", "message": "the request failed; the log says why"}}
    assert log[-1]["event"] == "an admin request failed"
    assert log[-1]["path"] == "/api/nodes"


def test_the_reference_of_the_configuration_names_both_variables() -> None:
    assert f"`{TOKEN_VARIABLE}`" in reference()
    assert f"`{HOSTS_VARIABLE}`" in reference()
