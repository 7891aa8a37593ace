"""An explanation says what the data path does with the same request."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.admin.api import create_app
from steelyard.core.work import Work
from steelyard.service import Service

from .building import CHAT, GB, FakeNode, admin_client, admit, ask, data_client, line_up, run, running, still_service


def explained(service: Service, **asked: Any) -> dict[str, Any]:
    answer = ask(create_app(service), "POST", "/api/explain", json={"path": "/v1/chat/completions"} | asked)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_every_node_has_a_score_or_an_objection() -> None:
    service = still_service(
        nodes=[
            {"name": "free", "url": "http://a:1", "engine": "vllm", "models": ["llama"]},
            {"name": "busy", "url": "http://a:2", "engine": "vllm", "models": ["llama"]},
            {"name": "full", "url": "http://a:3", "engine": "vllm", "models": ["llama"], "max_in_flight": 1},
            {"name": "images", "url": "http://a:4", "engine": "triton"},
            {"name": "other", "url": "http://a:5", "engine": "vllm", "models": ["bge"]},
            {"name": "drained", "url": "http://a:6", "engine": "vllm", "models": ["llama"]},
            {"name": "small", "url": "http://a:7", "engine": "vllm", "models": ["llama"], "gpu_memory": "4GB"},
        ],
        routes=[{"name": "chat", "footprints": [{"when": {}, "memory": "8GB", "seconds": 2}]}],
    )
    nodes = service.gateway.balancer.fleet.nodes
    ledger = service.gateway.balancer.ledger
    for name in ("full", "busy"):
        work = Work("openai", "chat", "llama")
        work.footprint = service.gateway.settings.routes[0].footprint(work)
        assert ledger.reserve(nodes[name], work, work.footprint, 1000.0, False)
    app = create_app(service)
    ask(app, "POST", "/api/nodes/drained/drain")
    answer = explained(service, body=CHAT)
    assert (answer["outcome"], answer["node"], answer["status"]) == ("placed", "free", None)
    assert (answer["route"], answer["policy"]) == ("chat", "least-work")
    assert answer["footprint"] == {
        "memory": 8 * GB,
        "seconds": 2.0,
        "tokens": answer["footprint"]["tokens"],
        "source": "table",
    }
    options = {option["node"]: (option["objection"], option["score"]) for option in answer["options"]}
    assert list(options)[:2] == ["free", "busy"]  # the best first
    assert options["free"] == (None, 2.0)
    assert options["busy"] == (None, 4.0)
    assert options["full"] == ("1 of 1 in flight", None)
    assert options["images"] == ("engine triton does not speak openai", None)
    assert options["other"] == ("does not serve model llama", None)
    assert options["drained"] == ("state draining", None)
    assert options["small"] == (f"needs {8 * GB} bytes, {4 * GB} are free", None)


def test_a_path_that_goes_to_no_node_is_refused_here_too() -> None:
    service = still_service()
    for path, code in (("/sleep", "forbidden"), ("/../x", "malformed_request")):
        assert explained(service, path=path)["outcome"] == code


def test_without_a_key_it_is_said_where_to_write_one() -> None:
    service = still_service(auth={"keys": [{"key": "right-key", "tenant": "art"}]})
    answer = explained(service, body=CHAT)
    assert answer["outcome"] == "missing_api_key"
    assert answer["reason"].endswith("write the key under headers, or only the tenant that it belongs to")
    for hint in ({"tenant": "art"}, {"headers": {"Authorization": "Bearer right-key"}}):
        assert explained(service, body=CHAT, **hint)["outcome"] == "placed"


def test_nothing_is_reserved_counted_or_remembered() -> None:
    service = still_service()
    gateway = service.gateway
    for _ in range(3):
        explained(service, body=CHAT)
        explained(service, body={**CHAT, "messages": ["x" * 300_000]})  # large enough to be read in pieces
    assert gateway.balancer.ledger.live == 0
    assert list(gateway.balancer.decisions) == []
    assert gateway.counters.cells == {}
    assert gateway.body_memory == 0
    assert all(node.served == 0 for node in gateway.balancer.fleet.nodes.values())


def test_an_alias_is_resolved() -> None:
    answer = explained(still_service(aliases={"gpt": "llama"}), body={**CHAT, "model": "gpt"})
    assert (answer["asked_model"], answer["model"], answer["outcome"]) == ("gpt", "llama", "placed")


def test_a_policy_that_does_not_compare_names_no_node() -> None:
    answer = explained(still_service(defaults={"policy": "round-robin"}), body=CHAT)
    assert (answer["outcome"], answer["node"], answer["policy"]) == ("placed", None, "round-robin")
    assert answer["reason"] == "round-robin among 2"


def test_routes_by_path_model_and_header() -> None:
    service = still_service(
        routes=[
            {"name": "team", "match": {"headers": {"X-Team": "art"}}},
            {"name": "llamas", "match": {"models": ["ll*"]}},
            {"name": "images", "match": {"path": "/sdapi/*"}},
        ]
    )
    assert explained(service, body=CHAT)["route"] == "llamas"
    assert explained(service, body=CHAT, headers={"x-TEAM": "art"})["route"] == "team"
    assert explained(service, method="GET", path="/sdapi/v1/options")["route"] == "images"
    nowhere = explained(service, method="GET", path="/elsewhere?x=1")
    assert (nowhere["outcome"], nowhere["status"], nowhere["route"]) == ("not_found", 404, None)
    assert nowhere["reason"] == "no route for /elsewhere"


def test_queued_behind_others_and_queue_full() -> None:
    service = still_service(
        nodes=[{"name": "n0", "url": "http://a:1", "engine": "vllm", "models": ["llama"], "max_in_flight": 1}],
        defaults={"queue": {"size": 1}},
    )
    admit(service)
    answer = explained(service, body=CHAT)
    assert (answer["outcome"], answer["reason"]) == ("queued", "every node is full")
    line_up(service)
    answer = explained(service, body=CHAT)
    assert (answer["outcome"], answer["status"]) == ("queue_full", 429)


def test_what_fits_nowhere() -> None:
    service = still_service(
        nodes=[{"name": "n0", "url": "http://a:1", "engine": "vllm", "models": ["llama"], "gpu_memory": "6GB"}],
        routes=[{"name": "chat", "footprints": [{"when": {}, "memory": "8GB"}]}],
    )
    answer = explained(service, body=CHAT)
    assert (answer["outcome"], answer["status"]) == ("does_not_fit", 422)
    assert str(8 * GB) in answer["reason"]
    assert str(6 * GB) in answer["reason"]


def test_keys_and_tenants() -> None:
    service = still_service(auth={"keys": [{"key": "key-of-art", "tenant": "art"}]})
    answer = explained(service, body=CHAT)
    assert (answer["outcome"], answer["status"]) == ("missing_api_key", 401)
    answer = explained(service, body=CHAT, headers={"Authorization": "Bearer wrong"})
    assert (answer["outcome"], answer["status"]) == ("invalid_api_key", 401)
    answer = explained(service, body=CHAT, headers={"Authorization": "Bearer key-of-art"})
    assert answer["outcome"] == "placed"
    assert "key-of-art" not in json.dumps(answer)
    # People who explain do not have their clients' keys.
    assert explained(service, body=CHAT, tenant="art")["outcome"] == "placed"


def test_a_session_is_seen_and_not_told() -> None:
    service = still_service()
    assert explained(service, body=CHAT)["has_session"] is False
    for asked in (
        {"headers": {"X-User-ID": "secret-session"}, "body": CHAT},
        {"headers": {"Cookie": "a=b; USER_SESSION=secret-session"}, "body": CHAT},
        {"body": {**CHAT, "user": "secret-session"}},
    ):
        answer = explained(service, **asked)
        assert answer["has_session"] is True
        assert "secret-session" not in json.dumps(answer)


def test_what_the_gateway_answers_itself() -> None:
    for path in ("/health", "/v1/models", "/v1/models/llama"):
        answer = explained(still_service(), method="GET", path=path)
        assert (answer["outcome"], answer["reason"]) == ("gateway", f"the gateway answers {path} itself")


def test_the_limit_of_the_gateway_for_bodies_holds() -> None:
    answer = explained(still_service(limits={"body": "1KB"}), body="x" * 1001)
    assert (answer["outcome"], answer["status"]) == ("body_too_large", 413)


def test_steering_headers_do_not_count_as_from_a_client_that_is_not_trusted() -> None:
    service = still_service(trust={"proxies": ["127.0.0.1"]}, defaults={"policy": "consistent-hash"})
    with_header = explained(service, body=CHAT, headers={"x-user-id": "u", "x-steelyard-tenant": "other"})
    without = explained(service, body=CHAT, headers={"x-user-id": "u"})
    assert with_header == without


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"body": "{"}, "body is not valid JSON: it ends in the middle of a value (byte 1)"),
        ({}, "body is empty"),
        ({"body": [1]}, "body must be"),
        ({"body": {"model": 5, "messages": []}}, "model must be a string, not an integer"),
        ({"body": CHAT, "headers": {"x-request-timeout": "soon"}}, "header x-request-timeout: 'soon'"),
        ({"body": CHAT, "headers": {"x-a": "1\r\nx-b: 2"}}, "headers: 'x-a' holds a line break"),
        ({"body": CHAT, "headers": {"x-a\n": "1"}}, "headers: 'x-a\\n' holds a line break"),
        ({"body": CHAT, "headers": {"x-a": "漢"}}, "'漢' cannot stand in a header"),
        ({"body": CHAT, "headers": {"a b": "1"}}, "method, path and headers make no HTTP request"),
        ({"body": CHAT, "headers": {"x-a": "x" * 70_000}}, "method, path and headers make no HTTP request"),
        ({"method": "NOTAMETHOD", "body": CHAT}, "method, path and headers make no HTTP request"),
    ],
)
def test_a_description_that_is_no_request(asked: dict[str, Any], says: str) -> None:
    answer = ask(create_app(still_service()), "POST", "/api/explain", json={"path": "/v1/chat/completions"} | asked)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["code"] == "malformed_request"
    assert says in answer.json()["error"]["message"]


def test_framing_headers_of_the_description_do_not_count() -> None:
    headers = {"Content-Length": "3", "Transfer-Encoding": "chunked"}
    assert explained(still_service(), body=CHAT, headers=headers)["outcome"] == "placed"


SERVICE = still_service()
APP = create_app(SERVICE)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
BODIES = st.one_of(
    st.text(max_size=20),
    JSON,
    st.fixed_dictionaries({}, optional=dict.fromkeys(("model", "messages", "stream", "max_tokens", "user"), JSON)),
)


@given(
    path=st.sampled_from(["/v1/chat/completions", "/v1/embeddings", "/sdapi/v1/txt2img", "/v1/messages", "/x"]),
    body=BODIES,
    headers=st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=3),
)
def test_whatever_is_described_is_explained_or_refused(path: str, body: Any, headers: dict[str, str]) -> None:
    content = json.dumps({"path": path, "body": body, "headers": headers}).encode()
    answer = ask(APP, "POST", "/api/explain", content=content, headers={"content-type": "application/json"})
    assert answer.status_code in (200, 400, 422), answer.text
    assert SERVICE.gateway.body_memory == 0
    if answer.status_code == 200:
        assert answer.json()["outcome"] in {"placed", "unknown_model", "unknown_version", "no_node"}
    else:
        assert answer.json()["error"]["message"]


# (method, path, headers, body): each is explained, then sent.
REQUESTS: list[tuple[str, str, dict[str, str], Any]] = [
    ("POST", "/v1/chat/completions", {}, CHAT),
    ("POST", "/v1/chat/completions", {}, {**CHAT, "model": "gpt"}),
    ("POST", "/v1/chat/completions", {}, {**CHAT, "model": "lama"}),
    ("POST", "/v1/chat/completions", {"model-version": "v9"}, CHAT),
    ("POST", "/v1/chat/completions", {"model-version": "v2"}, CHAT),
    ("POST", "/v1/chat/completions", {"x-user-id": "someone"}, CHAT),
    ("POST", "/v1/chat/completions", {}, "{"),
    ("POST", "/v1/embeddings", {}, {"model": "llama", "input": ["a", "b"]}),
    ("POST", "/v1/messages", {}, {**CHAT, "max_tokens": 5}),
    ("POST", "/sdapi/v1/txt2img", {}, {"prompt": "a cat", "width": 512, "height": 512}),
    ("POST", "/v2/models/llama/infer", {}, {"inputs": []}),
    ("GET", "/internal/unheard", {}, None),
    ("GET", "/elsewhere", {}, None),
]


@pytest.mark.parametrize("policy", ["least-work", "consistent-hash"])
def test_an_explanation_is_what_the_data_path_does(policy: str) -> None:
    async def scene() -> None:
        async with (
            running(
                *[FakeNode() for _ in range(3)],
                aliases={"gpt": "llama"},
                defaults={"policy": policy},
                routes=[
                    {"name": "big", "match": {"path": "/v1/embeddings"}, "policy": "least-request"},
                    {"name": "v1", "match": {"path": "/v1/*"}},
                    {"name": "v2", "match": {"path": "/v2/*"}},
                    {"name": "pictures", "match": {"path": "/sdapi/*"}},
                    {"name": "internal", "match": {"path": "/internal/*"}},
                ],
            ) as service,
            admin_client(service) as admin,
            data_client(service) as data,
        ):
            placed = 0
            for method, path, headers, body in REQUESTS:
                asked = {"method": method, "path": path, "headers": headers, "body": body}
                told = await admin.post("/api/explain", json=asked)
                content = body if isinstance(body, str) else None if body is None else json.dumps(body)
                answer = await data.request(method, path, headers=headers, content=content)
                assert_same(told, answer, service)
                placed += answer.status_code == 200
            assert placed >= 4

    run(scene())


def assert_same(told: httpx.Response, answer: httpx.Response, service: Service) -> None:
    if told.status_code == 400:
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "malformed_request"
        assert told.json()["error"]["message"].endswith(answer.json()["error"]["message"])
        return
    explanation = told.json()
    if answer.status_code == 200:
        assert explanation["outcome"] == "placed"
        decision = service.gateway.balancer.decisions[-1][2]
        assert explanation["route"] == decision.route.name  # type: ignore[union-attr]
        scores = [option["score"] for option in explanation["options"] if option["objection"] is None]
        if len(scores) > 1 and scores[0] is not None and scores[0] < scores[1]:
            assert explanation["node"] == answer.headers["x-steelyard-node"]
        assert answer.headers["x-steelyard-node"] in {
            option["node"] for option in explanation["options"] if option["objection"] is None
        }
        return
    assert explanation["status"] == answer.status_code
    assert explanation["outcome"] in answer.text
    assert explanation["reason"] in answer.text.replace('\\"', '"')


def test_the_node_that_is_named_gets_the_request() -> None:
    """Uneven loads, so that there is one best node: it is the one that then serves."""

    async def scene() -> None:
        async with running(*[FakeNode() for _ in range(4)]) as service:
            balancer = service.gateway.balancer
            async with admin_client(service) as admin, data_client(service) as data:
                for favourite in ("n2", "n0", "n3", "n1"):
                    leases = []
                    for node in balancer.fleet.nodes.values():
                        work = Work("openai", "chat", "llama")
                        footprint = service.gateway.settings.routes[0].footprint(work)
                        if node.name != favourite:
                            leases.append(balancer.ledger.reserve(node, work, footprint, service.gateway.clock()))
                    asked = {"path": "/v1/chat/completions", "body": CHAT}
                    told = (await admin.post("/api/explain", json=asked)).json()
                    answer = await data.post("/v1/chat/completions", json=CHAT)
                    assert told["node"] == answer.headers["x-steelyard-node"] == favourite
                    for lease in leases:
                        assert lease is not None
                        balancer.release(lease, service.gateway.clock())

    run(scene())
