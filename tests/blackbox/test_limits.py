"""What tenants may use, pages of other sites, and another model in place of one that cannot be served."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest

from tests.blackbox.fakenode import Answer, sse, stream
from tests.blackbox.wire import Message
from tests.blackbox.world import JSON, World, eventually, post_chat, request

KEYS = [{"key": "key-of-art", "tenant": "art"}, {"key": "key-of-lab", "tenant": "lab"}]
ART = {"Authorization": "Bearer key-of-art"}
LAB = {"Authorization": "Bearer key-of-lab"}


def code(answer: Message) -> str:
    found: str = json.loads(bytes(answer.body))["error"]["code"]
    return found


def limits(**tenants: dict[str, int]) -> dict[str, Any]:
    return {"auth__keys": KEYS, "limits__tenants": tenants}


# -- limits of tenants


async def test_requests_over_the_limit_are_429_with_what_is_left_and_when_to_come_again(world: World) -> None:
    node = await world.node(Answer(headers=(("x-ratelimit-limit-requests", "9"), ("Content-Type", "application/json"))))
    running = await world.serve(node, **limits(art={"requests": 3}))
    for left in (2, 1, 0):
        answer = await running.ask(post_chat(headers=ART))
        assert answer.status == 200
        assert answer.all("x-ratelimit-limit-requests") == [b"3"], "the node's own is not the client's"
        assert answer.get("x-ratelimit-remaining-requests") == b"%d" % left
        assert (answer.get("x-ratelimit-reset-requests") or b"").endswith(b"ms")
        assert answer.get("x-ratelimit-limit-tokens") is None
    refused = await running.ask(post_chat(headers=ART))
    assert (refused.status, code(refused)) == (429, "rate_limited")
    assert 15 <= int(refused.get("retry-after") or 0) <= 20
    assert refused.get("x-ratelimit-remaining-requests") == b"0"
    assert len(node.log) == 3
    other = await running.ask(post_chat(headers=LAB))
    assert other.status == 200
    assert other.get("x-ratelimit-limit-requests") == b"9", "without a limit of ours the node's passes"


async def test_tokens_are_put_right_by_what_the_node_tells(world: World) -> None:
    usage = b'{"model":"m","choices":[],"usage":{"prompt_tokens":400,"completion_tokens":500}}'
    node = await world.node(Answer(body=usage))
    running = await world.serve(node, **limits(art={"tokens": 1000}))
    first = await running.ask(post_chat(headers=ART, max_tokens=10))
    assert int(first.get("x-ratelimit-remaining-tokens") or 0) > 900
    answer = await running.ask(post_chat(headers=ART, max_tokens=10))
    assert answer.status == 200
    assert int(answer.get("x-ratelimit-remaining-tokens") or 0) < 100
    refused = await running.ask(post_chat(headers=ART, max_tokens=10))
    assert code(refused) == "rate_limited"


async def test_tokens_of_streams_count_too(world: World) -> None:
    node = await world.node(stream("a", "b"))
    running = await world.serve(node, **limits(art={"tokens": 10_000}))
    answer = await running.ask(post_chat(headers=ART, stream=True, max_tokens=200))
    assert answer.complete
    # It told no usage: what was predicted stands.
    node.answer = stream("a", "b")
    told = {"usage": {"prompt_tokens": 3000, "completion_tokens": 2000}, "choices": [], "model": "m"}
    node.answer = Answer(headers=(("Content-Type", "text/event-stream"),), chunks=sse(told), framing="chunked")
    again = await running.ask(post_chat(headers=ART, stream=True, max_tokens=10))
    assert 9000 < int(again.get("x-ratelimit-remaining-tokens") or 0) < 9900
    last = await running.ask(post_chat(headers=ART, max_tokens=1))
    assert int(last.get("x-ratelimit-remaining-tokens") or 0) < 5000


async def test_a_request_that_was_not_served_costs_no_tokens(world: World) -> None:
    node = await world.node()
    running = await world.serve(node, **limits(art={"tokens": 10_000}), defaults__retry__retries=0)
    node.refuse()
    assert (await running.ask(post_chat(headers=ART, max_tokens=8000))).status == 502
    await node.start()
    await eventually(lambda: running.state(node) == "ready")
    assert (await running.ask(post_chat(headers=ART, max_tokens=8000))).status == 200


@pytest.mark.parametrize("end", ["answer", "leave", "break"])
async def test_requests_at_the_same_time_are_given_back_however_they_end(world: World, end: str) -> None:
    gate = asyncio.Event()

    async def wait(received: Any) -> None:
        await received.whole()
        if end == "break":
            await gate.wait()
            received.peer.rst()
            return
        await asyncio.wait(
            {asyncio.ensure_future(gate.wait()), asyncio.ensure_future(received.gone(30))},
            return_when=asyncio.FIRST_COMPLETED,
        )
        if not received.peer.ended:
            received.send(Answer().head() + Answer().body)

    node = await world.node(script=wait)
    running = await world.serve(node, **limits(art={"concurrent": 2}))
    clients = []
    for _ in range(2):
        client = await running.client()
        client.send(request("POST", "/v1/responses", {**JSON, **ART}, b'{"model":"m"}'))
        clients.append(client)
    await eventually(lambda: node.executions == 2)
    refused = await running.ask(post_chat(headers=ART))
    assert code(refused) == "rate_limited"
    assert refused.get("retry-after") == b"1"
    if end == "leave":
        for client in clients:
            client.fin()
        await eventually(lambda: not running.exchanges)
    gate.set()
    if end != "leave":
        for client in clients:
            await client.answer("POST")
    node.script = None
    assert (await running.ask(post_chat(headers=ART))).status == 200


async def test_every_tenant_that_is_not_named_has_the_limits_of_all_others(world: World) -> None:
    running = await world.serve(
        await world.node(), limits__tenants={"*": {"requests": 1}}, trust__proxies=["127.0.0.0/8"]
    )
    for tenant in ("a", "b"):
        headers = {"x-steelyard-tenant": tenant}
        assert (await running.ask(post_chat(headers=headers))).status == 200
        assert (await running.ask(post_chat(headers=headers))).status == 429


async def test_a_reload_of_something_else_keeps_what_was_used(world: World) -> None:
    running = await world.serve(await world.node(), **limits(art={"requests": 1}))
    assert (await running.ask(post_chat(headers=ART))).status == 200
    running.reload(aliases={"x": "m"})
    assert (await running.ask(post_chat(headers=ART))).status == 429
    running.reload(limits__tenants={})
    assert (await running.ask(post_chat(headers=ART))).status == 200


async def test_openai_s_client_waits_as_long_as_it_is_told(world: World) -> None:
    running = await world.serve(await world.node(), **limits(art={"requests": 1}))
    async with openai.AsyncOpenAI(base_url=f"{running.base_url}/v1", api_key="key-of-art", max_retries=0) as client:
        messages: Any = [{"role": "user", "content": "hello"}]
        await client.chat.completions.create(model="m", messages=messages)
        with pytest.raises(openai.RateLimitError) as raised:
            await client.chat.completions.create(model="m", messages=messages)
    assert raised.value.code == "rate_limited"
    assert int(raised.value.response.headers["retry-after"]) > 50


# -- pages of other sites

ORIGIN = "https://app.example"
PREFLIGHT = {
    "Origin": ORIGIN,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization, content-type",
}
CORS = {"cors": {"origins": [ORIGIN, "https://*.team.example:8443"], "max_age": "5m"}}


@pytest.mark.parametrize("origin", [ORIGIN, "https://APP.example", "https://a.team.example:8443"])
async def test_a_browser_that_asks_is_answered_without_a_key_and_without_a_node(world: World, origin: str) -> None:
    node = await world.node()
    running = await world.serve(node, **CORS, auth__keys=KEYS)
    client = await running.client()
    for _ in range(2):
        answer = await client.ask(request("OPTIONS", "/v1/chat/completions", {**PREFLIGHT, "Origin": origin}))
        assert answer.status == 204
        assert answer.get("access-control-allow-origin") == origin.encode()
        assert answer.get("access-control-allow-headers") == b"authorization, content-type"
        assert b"POST" in (answer.get("access-control-allow-methods") or b"")
        assert answer.get("access-control-max-age") == b"300"
        assert answer.get("vary") == b"Origin"
        assert answer.get("access-control-allow-credentials") is None
        assert answer.get("x-request-id")
    assert not node.log


STRANGERS = [
    "https://evil.example",
    "http://app.example",
    "https://a.b.team.example:8443",
    "null",
    "https://app.example.evil",
]


@pytest.mark.parametrize("origin", STRANGERS)
async def test_pages_of_others_may_not(world: World, origin: str) -> None:
    allowing = Answer(headers=(("Access-Control-Allow-Origin", "*"), ("Content-Type", "application/json")))
    node = await world.node(allowing)
    running = await world.serve(node, **CORS)
    refused = await running.ask(request("OPTIONS", "/v1/chat/completions", {**PREFLIGHT, "Origin": origin}))
    assert (refused.status, code(refused)) == (403, "forbidden")
    assert refused.get("access-control-allow-origin") is None
    answer = await running.ask(post_chat(headers={"Origin": origin}))
    assert answer.get("access-control-allow-origin") is None, "what the node allows does not count"
    assert answer.get("vary") == b"Origin"


async def test_answers_and_errors_may_be_read_by_the_page(world: World) -> None:
    node = await world.node(
        Answer(
            headers=(
                ("Access-Control-Allow-Origin", "*"),
                ("access-control-expose-headers", "x"),
                ("Content-Type", "application/json"),
            )
        )
    )
    running = await world.serve(node, **CORS, auth__keys=KEYS)
    for data, status in (
        (post_chat(headers={**ART, "Origin": ORIGIN}), 200),
        (post_chat("none", headers={**ART, "Origin": ORIGIN}), 404),
        (post_chat(headers={"Origin": ORIGIN}), 401),
        (request("GET", "/v1/models", {**ART, "Origin": ORIGIN}), 200),
        (request("GET", "/health", {"Origin": ORIGIN}), 200),
    ):
        answer = await running.ask(data)
        assert answer.status == status
        assert answer.all("access-control-allow-origin") == [ORIGIN.encode()]
        assert b"x-request-id" in (answer.get("access-control-expose-headers") or b"")
    assert (await running.ask(post_chat(headers=ART))).get("access-control-allow-origin") is None


@pytest.mark.parametrize(("credentials", "allowed"), [(False, b"*"), (True, b"https://any.example")])
async def test_all_origins(world: World, credentials: bool, allowed: bytes) -> None:
    running = await world.serve(await world.node(), cors={"origins": ["*"], "credentials": credentials})
    headers = {"Origin": "https://any.example"}
    for answer in (
        await running.ask(request("OPTIONS", "/x", {**PREFLIGHT, **headers})),
        await running.ask(post_chat(headers=headers)),
    ):
        assert answer.get("access-control-allow-origin") == allowed
        assert answer.get("access-control-allow-credentials") == (b"true" if credentials else None)


async def test_without_the_key_cors_is_the_nodes_affair(world: World) -> None:
    node = await world.node(Answer(headers=(("Access-Control-Allow-Origin", "*"),)))
    running = await world.serve(node)
    answer = await running.ask(request("OPTIONS", "/v1/chat/completions", PREFLIGHT))
    assert answer.all("access-control-allow-origin") == [b"*"]
    assert node.log[0].get("access-control-request-method") == b"POST"


async def test_other_questions_for_options_go_to_the_node(world: World) -> None:
    node = await world.node()
    running = await world.serve(node, **CORS)
    for headers in ({}, {"Origin": ORIGIN}, {"Access-Control-Request-Method": "POST"}):
        assert (await running.ask(request("OPTIONS", "/x", headers))).status == 200
    assert len(node.log) == 3


# -- another model

FALLBACK = {"routes": [{"name": "chat", "fallback": "small"}]}


async def test_a_model_without_a_node_is_replaced_and_the_client_is_told(world: World) -> None:
    large, small = await world.node(models=("large",)), await world.node(models=("small",))
    running = await world.serve(large, small, aliases={"gpt-4": "large"}, **FALLBACK)
    assert (await running.ask(post_chat("gpt-4"))).get("x-steelyard-node") == b"n1"
    large.refuse()
    small.answer = Answer(body=b'{"model":"small","choices":[]}')
    for name in ("gpt-4", "large"):
        answer = await running.ask(post_chat(name, content="x" * 200_000))
        assert answer.status == 200
        assert answer.get("x-steelyard-node") == b"n2"
        assert (answer.get("x-steelyard-reason") or b"").endswith(b"; small instead of %b" % name.encode())
        assert json.loads(bytes(answer.body))["model"] == "small"
        assert small.log[-1].json["model"] == "small"
        assert small.log[-1].json["messages"] == [{"role": "user", "content": "x" * 200_000}]
    assert (await running.ask(post_chat("none"))).status == 404


@pytest.mark.parametrize("size", [10, 300_000])
async def test_a_request_that_its_node_died_of_goes_on_with_the_other_model(world: World, size: int) -> None:
    async def die(received: Any) -> None:
        await received.whole()
        await asyncio.sleep(0.4)
        received.peer.rst()

    large, small = await world.node(models=("large",), script=die), await world.node(models=("small",))
    running = await world.serve(large, small, aliases={"gpt-4": "large"}, telemetry__interval="1h", **FALLBACK)
    answer = await running.ask(post_chat("gpt-4", content="x" * size))
    assert answer.status == 200
    assert large.log[0].json["model"] == "large"
    assert small.log[0].json == {"model": "small", "messages": [{"role": "user", "content": "x" * size}]}
