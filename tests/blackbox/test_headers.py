"""Headers on their way: which pass, which are added, which are nobody else's business."""

from __future__ import annotations

import re
from typing import Any, ClassVar

import pytest

from tests.blackbox.fakenode import Answer
from tests.blackbox.wire import Message
from tests.blackbox.world import World, node_entry, post_chat, request

TRUSTED = {"trust__proxies": ["127.0.0.0/8"]}
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def at_the_node(world: World, headers: dict[str, str] | list[tuple[str, str]], **changes: object) -> Message:
    """What the node gets of a request with these headers."""
    node = await world.node()
    running = await world.serve(node, **changes)
    answer = await running.ask(request("GET", "/x", headers))
    assert answer.status == 200
    return node.log[0]


async def test_end_to_end_headers_pass_in_order_and_as_they_are_written(world: World) -> None:
    headers = [
        ("X-MiXed", "Kept  as it is"),
        ("Accept", "*/*"),
        ("x-twice", "1"),
        ("x-twice", "2"),
        ("Cookie", "a=1; b=2"),
        ("User-Agent", "a client"),
        ("X-Empty", ""),
        ("X-Latin", "caf\xe9"),
        ("Range", "bytes=0-1"),
    ]
    got = await at_the_node(world, headers)
    expected = [(name, value.encode("latin-1")) for name, value in headers]
    assert [pair for pair in got.headers if pair in expected] == expected


async def test_hop_by_hop_headers_stay_here_both_ways(world: World) -> None:
    node = await world.node(
        Answer(
            headers=(
                ("Connection", "keep-alive, X-Node-Hop"),
                ("Keep-Alive", "timeout=5"),
                ("X-Node-Hop", "1"),
                ("Proxy-Authenticate", "Basic"),
                ("X-Stays", "1"),
            )
        )
    )
    running = await world.serve(node)
    headers = {
        "Connection": "keep-alive, X-Hop , close-not",
        "X-Hop": "1",
        "Close-Not": "1",
        "Keep-Alive": "300",
        "TE": "trailers",
        "Proxy-Connection": "keep-alive",
        "Proxy-Authorization": "Basic eA==",
        "Upgrade": "websocket2",
        "X-Stays": "1",
    }
    answer = await running.ask(request("GET", "/x", headers))
    gone = (
        "x-hop",
        "close-not",
        "keep-alive",
        "te",
        "proxy-connection",
        "proxy-authorization",
        "upgrade",
        "connection",
    )
    for name in gone:
        assert node.log[0].get(name) is None, name
    assert node.log[0].get("x-stays") == b"1"
    for name in ("x-node-hop", "keep-alive", "proxy-authenticate"):
        assert answer.get(name) is None, name
    assert answer.get("x-stays") == b"1"


@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_connection_cannot_take_away_the_end_of_an_answer(world: World, version: str) -> None:
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Hop: 1\r\nConnection: content-length, X-Hop, keep-alive\r\n\r\nok"
    running = await world.serve(await world.node(Answer(raw=raw)))
    answer = await running.ask(request("GET", "/x", version=version))
    assert bytes(answer.body) == b"ok"
    assert answer.all("content-length") == [b"2"]
    assert answer.get("x-hop") is None


async def test_connection_cannot_take_away_what_the_gateway_itself_writes(world: World) -> None:
    got = await at_the_node(world, {"Connection": "X-Forwarded-For, Host, Via, x-request-id, Content-Length"})
    assert got.get("x-forwarded-for") == b"127.0.0.1"
    assert got.get("host")
    assert got.get("x-request-id")


async def test_host_is_the_node_s_and_the_client_s_is_kept_beside_it(world: World) -> None:
    node = await world.node()
    running = await world.serve(node)
    await running.ask(request("GET", "/x", {"Host": "api.example"}))
    assert node.log[0].all("host") == [f"127.0.0.1:{node.port}".encode()]
    assert node.log[0].get("x-forwarded-host") == b"api.example"


async def test_a_path_prefix_of_the_node_is_put_in_front(world: World) -> None:
    node = await world.node()
    entry = node_entry(node)
    running = await world.serve({**entry, "url": node.url + "/base/", "engine": "generic"})
    await running.ask(request("GET", "/a/b?c=d%20e"))
    assert node.log[-1].target == "/base/a/b?c=d%20e"


@pytest.mark.parametrize(
    "target",
    [
        "/../x",
        "/a/../../x",
        "/a#/../../x",
        "/a?b#c",
        "/v2/models/..%2f..%2f..%2f..%2fx/infer",
        "/%2e%2E/x",
        "/a/..%2f../x",
        "/..",
        "/a/..\\..\\x",
    ],
)
async def test_a_path_cannot_climb_out_of_the_prefix_of_a_node(world: World, target: str) -> None:
    node = await world.node()
    entry = node_entry(node)
    running = await world.serve({**entry, "url": node.url + "/base", "engine": "generic"}, telemetry__interval="1h")
    asked = len(node.log)
    for method in ("GET", "POST"):
        assert (await running.ask(request(method, target))).status == 400
    assert len(node.log) == asked
    assert (await running.ask(request("GET", "/a/../b/..c"))).status == 200
    assert node.log[-1].target == "/base/a/../b/..c"


async def test_a_request_for_the_server_as_a_whole_has_no_prefix(world: World) -> None:
    node = await world.node()
    running = await world.serve({**node_entry(node), "url": node.url + "/base", "engine": "generic"})
    await running.ask(request("OPTIONS", "*"))
    assert node.log[-1].target == "*"


async def test_via_tells_the_version_that_the_client_spoke(world: World) -> None:
    node = await world.node()
    running = await world.serve(node)
    for version in ("1.1", "1.0", "1.1"):
        await running.ask(request("GET", "/x", {"Host": "a"}, version=version))
        assert node.log[-1].get("via") == f"{version} steelyard".encode()


async def test_forwarding_headers_of_strangers_are_replaced(world: World) -> None:
    headers = {
        "X-Forwarded-For": "1.2.3.4",
        "X-Forwarded-Proto": "https",
        "X-Forwarded-Host": "evil.example",
        "Forwarded": "for=1.2.3.4",
        "Via": "1.1 before",
    }
    got = await at_the_node(world, headers)
    assert got.get("x-forwarded-for") == b"127.0.0.1"
    assert got.get("x-forwarded-proto") == b"http"
    assert got.get("x-forwarded-host") == b"gateway.test"
    assert got.get("forwarded") is None
    assert got.get("via") == b"1.1 before, 1.1 steelyard"


async def test_forwarding_headers_of_trusted_proxies_are_continued(world: World) -> None:
    headers = [
        ("X-Forwarded-For", "1.2.3.4"),
        ("X-Forwarded-For", "10.0.0.1"),
        ("X-Forwarded-Proto", "https"),
        ("X-Forwarded-Host", "api.example"),
    ]
    got = await at_the_node(world, headers, **TRUSTED)
    assert got.get("x-forwarded-for") == b"1.2.3.4, 10.0.0.1, 127.0.0.1"
    assert got.get("x-forwarded-proto") == b"https"
    assert got.get("x-forwarded-host") == b"api.example"
    assert got.get("via") == b"1.1 steelyard"


@pytest.mark.parametrize("trusted", [False, True])
async def test_steering_headers_never_reach_a_node(world: World, trusted: bool) -> None:
    headers = {"X-Steelyard-Tenant": "art", "x-steelyard-priority": "1", "x-steelyard-anything": "x"}
    got = await at_the_node(world, headers, **(TRUSTED if trusted else {}))
    assert [name for name, _ in got.headers if name.lower().startswith("x-steelyard")] == []
    line = await world.gateways[0].line()
    assert line.get("tenant", "") == ("art" if trusted else "")


@pytest.mark.parametrize("given", ["abc-123", "a" * 128, "{weird} but printable!"])
async def test_a_request_id_that_is_given_is_kept(world: World, given: str) -> None:
    node = await world.node()
    running = await world.serve(node)
    answer = await running.ask(request("GET", "/x", {"X-Request-ID": given}))
    assert answer.get("x-request-id") == given.encode()
    assert node.log[0].get("x-request-id") == given.encode()
    assert (await running.line())["id"] == given


@pytest.mark.parametrize("given", [None, "", "a" * 129, "caf\xe9", "tab\there"])
async def test_a_request_id_is_made_where_none_or_a_bad_one_is_given(world: World, given: str | None) -> None:
    node = await world.node()
    running = await world.serve(node)
    headers = {} if given is None else {"X-Request-ID": given}
    seen = set()
    for _ in range(2):
        answer = await running.ask(request("GET", "/x", headers))
        made = answer.get("x-request-id")
        assert made is not None
        assert re.fullmatch(rb"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-a[0-9a-f]{3}-[0-9a-f]{12}", made)
        assert node.log[-1].get("x-request-id") == made
        seen.add(made)
    assert len(seen) == 2


async def test_a_node_s_own_request_id_is_replaced(world: World) -> None:
    node = await world.node(Answer(headers=(("X-Request-Id", "node's"),)))
    running = await world.serve(node)
    answer = await running.ask(request("GET", "/x", {"x-request-id": "mine"}))
    assert answer.all("x-request-id") == [b"mine"]


async def test_a_valid_trace_passes_and_is_logged(world: World) -> None:
    got = await at_the_node(world, {"traceparent": TRACE, "tracestate": "a=b"})
    assert got.get("traceparent") == TRACE.encode()
    assert got.get("tracestate") == b"a=b"
    assert (await world.gateways[0].line())["trace"] == TRACE.split("-")[1]


@pytest.mark.parametrize(
    "trace",
    [
        "00-" + "0" * 32 + "-b7ad6b7169203331-01",
        "ff" + TRACE[2:],
        TRACE.upper(),
        TRACE + "-x",
        TRACE[:-1],
        "nonsense",
        "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
        "00-0af7651916cd43dd8448eb211c80319g-b7ad6b7169203331-01",
    ],
)
async def test_an_invalid_trace_is_dropped_with_its_state(world: World, trace: str) -> None:
    got = await at_the_node(world, {"traceparent": trace, "tracestate": "a=b"})
    assert got.get("traceparent") is None
    assert got.get("tracestate") is None


class TestAuthorization:
    """Whose key goes where."""

    KEYS: ClassVar[dict[str, Any]] = {
        "auth__keys": [{"key": "art-key-1", "tenant": "art"}, {"key": "lab-key-2", "tenant": "lab"}]
    }

    async def test_without_keys_the_client_s_goes_to_the_node(self, world: World) -> None:
        got = await at_the_node(world, {"Authorization": "Bearer client"})
        assert got.all("authorization") == [b"Bearer client"]

    async def test_a_node_s_key_replaces_the_client_s(self, world: World) -> None:
        node = await world.node()
        running = await world.serve(node_entry(node, api_key="node-key-123"))
        for headers in ({"Authorization": "Bearer client"}, {}):
            await running.ask(request("GET", "/x", headers))
            assert node.log[-1].all("authorization") == [b"Bearer node-key-123"]

    async def test_with_keys_the_client_s_never_leaves_the_gateway(self, world: World) -> None:
        node = await world.node()
        running = await world.serve(node, **self.KEYS)
        for headers in (
            {"Authorization": "Bearer art-key-1"},
            {"authorization": "bearer  art-key-1"},
            {"x-api-key": "art-key-1"},
        ):
            answer = await running.ask(request("GET", "/x", headers))
            assert answer.status == 200, headers
            assert node.log[-1].get("authorization") is None
            assert node.log[-1].get("x-api-key") is None
        await running.at_rest()
        assert {line["tenant"] for line in running.lines()} == {"art"}

    @pytest.mark.parametrize(
        ("headers", "code"),
        [
            ({}, "missing_api_key"),
            ({"Authorization": "Bearer "}, "missing_api_key"),
            ({"Authorization": "Basic art-key-1"}, "missing_api_key"),
            ({"Authorization": "Bearer wrong"}, "invalid_api_key"),
            ({"x-api-key": "ART-KEY-1"}, "invalid_api_key"),
            ({"x-api-key": "wrong", "Authorization": "Bearer art-key-1"}, "invalid_api_key"),
        ],
    )
    async def test_who_has_none_gets_401_before_the_body_is_read(
        self, world: World, headers: dict[str, str], code: str
    ) -> None:
        node = await world.node()
        running = await world.serve(node, **self.KEYS)
        client = await running.client()
        # 100-continue must not be answered before the key is looked at.
        client.send(request("POST", "/x", {**headers, "Content-Length": "1000000", "Expect": "100-continue"}))
        answer = await client.answer("POST")
        assert answer.status == 401
        assert answer.interim == []
        assert code.encode() in answer.body
        assert not node.log

    async def test_the_list_of_models_needs_a_key_too(self, world: World) -> None:
        running = await world.serve(await world.node(), **self.KEYS)
        assert (await running.ask(request("GET", "/v1/models"))).status == 401
        assert (await running.ask(request("GET", "/v1/models", {"x-api-key": "lab-key-2"}))).status == 200
        assert (await running.ask(request("GET", "/health"))).status == 200

    async def test_keys_are_no_part_of_the_log(self, world: World) -> None:
        running = await world.serve(await world.node(), **self.KEYS)
        await running.ask(post_chat(headers={"Authorization": "Bearer art-key-1"}))
        await running.ask(post_chat(headers={"Authorization": "Bearer wrong-key"}))
        await running.at_rest()
        assert "key-1" not in str(running.lines())
        assert "wrong" not in str(running.lines())


@pytest.mark.parametrize(("seconds", "status"), [("3", 200), ("86400", 200), ("90000", 400), ("1e308", 400)])
async def test_a_hint_of_a_trusted_peer_is_a_sane_number(world: World, seconds: str, status: int) -> None:
    running = await world.serve(await world.node(), **TRUSTED)
    assert (await running.ask(post_chat(headers={"x-steelyard-seconds": seconds}))).status == status
