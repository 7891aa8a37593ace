"""T63: other names for models, from the client to the node and back."""

from __future__ import annotations

import json

import pytest

from steelyard.config.errors import ConfigError
from tests.blackbox.fakenode import Answer, delta, sse
from tests.blackbox.world import JSON, World, configuration, post_chat, request

ALIASES = {"gpt-4": "llama", "llama": "m", "own": "other"}


async def test_T63_an_alias_is_resolved_in_the_request_and_hidden_in_the_answer(world: World) -> None:
    node = await world.node()
    running = await world.serve(node, aliases=ALIASES)
    for alias in ("llama", "gpt-4"):  # one step, and a chain of two
        answer = await running.ask(post_chat(alias, user="model", content='say "model":"gpt-4"'))
        assert answer.status == 200
        asked = node.log[-1].json
        assert asked["model"] == "m"
        assert asked["user"] == "model"
        assert asked["messages"] == [{"role": "user", "content": 'say "model":"gpt-4"'}]
        document = json.loads(bytes(answer.body))
        assert document["model"] == alias
        expected = {**json.loads(Answer().body), "model": alias}
        assert document == expected


@pytest.mark.parametrize("size", [None, 1, 7, 1000])
@pytest.mark.parametrize("framing", ["chunked", "length", "close"])
async def test_T63_an_alias_is_hidden_in_a_stream_however_it_is_cut(
    world: World, size: int | None, framing: str
) -> None:
    events = sse(delta('a "model":"m" b'), delta("model"), {"id": "x", "model": "m", "usage": {"prompt_tokens": 1}})
    whole = b"".join(events)
    pieces = events if size is None else [whole[i : i + size] for i in range(0, len(whole), size)]
    node = await world.node(Answer(headers=(("Content-Type", "text/event-stream"),), chunks=pieces, framing=framing))
    running = await world.serve(node, aliases=ALIASES)
    answer = await running.ask(post_chat("gpt-4", stream=True))
    assert answer.complete
    expected = whole.replace(b'"model": "m"', b'"model": "gpt-4"')
    assert bytes(answer.body) == expected
    assert b"".join(sse(delta('a "model":"m" b', "gpt-4"))[:1]) in bytes(answer.body)


@pytest.mark.parametrize("framing", ["chunked", "length", "close"])
async def test_T63_an_alias_is_hidden_in_a_large_answer_which_is_not_held(world: World, framing: str) -> None:
    body = b'{"data":"%b","model" : "m","more":"%b"}' % (b"x" * 12_000_000, b"y" * 3_000_000)
    node = await world.node(Answer(headers=(("Content-Type", "application/json"),), body=body, framing=framing))
    running = await world.serve(node, aliases=ALIASES)
    answer = await running.ask(post_chat("gpt-4"))
    assert answer.complete
    assert bytes(answer.body) == body.replace(b'"m"', b'"gpt-4"')


async def test_T63_a_name_that_is_no_alias_is_not_touched(world: World) -> None:
    node = await world.node(Answer(body=b'{"model" :  "m"}'))
    running = await world.serve(node, aliases=ALIASES)
    answer = await running.ask(post_chat("m"))
    assert bytes(answer.body) == b'{"model" :  "m"}'
    assert answer.framing == "length"


@pytest.mark.parametrize("name", ["GPT-4", "gpt-4 ", "gpt", "Llama", "M", ""])
async def test_T63_names_are_exact_and_an_unknown_one_is_a_404_that_says_what_there_is(world: World, name: str) -> None:
    node = await world.node()
    running = await world.serve(node, aliases=ALIASES)
    answer = await running.ask(post_chat(name))
    assert answer.status == 404
    error = json.loads(bytes(answer.body))["error"]
    assert error["code"] == "unknown_model"
    assert "m" in error["message"]
    assert not node.log


async def test_T63_an_alias_of_a_model_that_nobody_has_is_a_404(world: World) -> None:
    running = await world.serve(await world.node(), aliases=ALIASES)
    answer = await running.ask(post_chat("own"))
    assert answer.status == 404


def test_T63_a_cycle_is_refused() -> None:
    with pytest.raises(ConfigError, match="a"):
        configuration({"aliases": {"a": "b", "b": "c", "c": "a"}, "nodes": ["http://127.0.0.1:1"]})


async def test_T63_the_list_of_models_has_the_aliases_of_models_that_are_there(world: World) -> None:
    one, other = await world.node(models=("m", "only-one")), await world.node(models=("m", "base", "base:adapter"))
    running = await world.serve(one, other, aliases=ALIASES)
    client = await running.client()
    answer = await client.ask(request("GET", "/v1/models"))
    document = json.loads(bytes(answer.body))
    ids = [card["id"] for card in document["data"]]
    assert sorted(ids) == ["base", "base:adapter", "gpt-4", "llama", "m", "only-one"]
    (card,) = [card for card in document["data"] if card["id"] == "gpt-4"]
    assert card["root"] == "m"
    single = await client.ask(request("GET", "/v1/models/gpt-4"))
    assert json.loads(bytes(single.body))["id"] == "gpt-4"
    missing = await client.ask(request("GET", "/v1/models/none"))
    assert missing.status == 404
    head = await client.ask(request("HEAD", "/v1/models"))
    assert head.get("content-length") == str(len(answer.body)).encode()


async def test_T63_an_adapter_goes_where_it_is_named_else_to_its_base(world: World) -> None:
    base, loaded = await world.node(models=("base",)), await world.node(models=("base", "base:french"))
    running = await world.serve(base, loaded, aliases={"fr": "base:french"})
    for name in ("base:french", "fr"):
        assert (await running.ask(post_chat(name))).status == 200
    assert [received.json["model"] for received in loaded.log] == ["base:french"] * 2
    assert not base.log
    assert (await running.ask(post_chat("base:unheard"))).status == 200
    assert [r.json["model"] for node in (base, loaded) for r in node.log if r.json["model"] != "base:french"] == [
        "base:unheard"
    ]
    assert (await running.ask(post_chat("nobody:french"))).status == 404


async def test_T63_an_alias_in_a_multipart_form(world: World) -> None:
    node = await world.node(Answer(body=b'{"text":"hello","model":"m"}'))
    running = await world.serve(node, aliases=ALIASES)
    parts = (
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n%b\r\n'
        b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\n%b\r\n--b--\r\n'
    )
    kind = {"Content-Type": "multipart/form-data; boundary=b"}
    answer = await running.ask(request("POST", "/v1/audio/transcriptions", kind, parts % (b"\x00\xff", b"gpt-4")))
    assert answer.status == 200
    assert bytes(node.log[0].body) == parts % (b"\x00\xff", b"m")
    assert json.loads(bytes(answer.body))["model"] == "gpt-4"


async def test_T63_an_alias_where_the_model_is_not_at_the_top(world: World) -> None:
    node = await world.node(Answer(body=b"{}"), owner="sdwebui", models=("sd",))
    running = await world.serve(node, aliases={"pictures": "sd"})
    body = b'{"prompt":"a cat","override_settings":{"sd_model_checkpoint":"pictures"},"model":"pictures"}'
    assert (await running.ask(request("POST", "/sdapi/v1/txt2img", JSON, body))).status == 200
    assert node.log[0].json["override_settings"] == {"sd_model_checkpoint": "sd"}


async def test_T63_an_alias_survives_a_second_sending(world: World) -> None:
    nodes = [await world.node(Answer(status=503, body=b"busy")), await world.node()]
    running = await world.serve(*nodes, aliases=ALIASES, defaults__policy="round-robin")
    for _ in range(2):
        answer = await running.ask(post_chat("gpt-4"))
        assert json.loads(bytes(answer.body))["model"] == "gpt-4"
    assert {received.json["model"] for node in nodes for received in node.log} == {"m"}


async def test_T63_a_large_request_with_an_alias_is_renamed_too(world: World) -> None:
    node = await world.node()
    running = await world.serve(node, aliases=ALIASES)
    content = "x" * 400_000
    message = json.dumps([{"role": "user", "content": content}]).encode()
    bodies = [b'{"model":"gpt-4","messages":%b}' % message, b'{"messages":%b,"model": "gpt-4"}' % message]
    for body in bodies:
        for data in (
            request("POST", "/v1/chat/completions", JSON, body),
            request("POST", "/v1/chat/completions", JSON, chunks=[body[:5], body[5:300_000], body[300_000:]]),
        ):
            assert (await running.ask(data)).status == 200
            assert bytes(node.log[-1].body) == body.replace(b'"gpt-4"', b'"m"')
    assert running.gateway.body_memory == 0


async def test_T63_aliases_can_be_reloaded(world: World) -> None:
    running = await world.serve(await world.node(), aliases=ALIASES)
    assert (await running.ask(post_chat("new"))).status == 404
    running.reload(aliases={"new": "m"})
    assert (await running.ask(post_chat("new"))).status == 200
    assert (await running.ask(post_chat("gpt-4"))).status == 404
