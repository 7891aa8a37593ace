"""The admin API in this process: what it shows and what it steers."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import quote

import pytest

import steelyard
from steelyard.admin.api import create_app
from steelyard.core.node import Event, State
from steelyard.core.work import Work
from steelyard.telemetry.health import Health

from .building import CHAT, GB, admit, ask, clock_of, line_up, make_ready, still_service


def error_of(answer: Any) -> dict[str, str]:
    assert list(answer.json()) == ["error"]
    error: dict[str, str] = answer.json()["error"]
    assert sorted(error) == ["code", "message"]
    return error


# -- probes


def test_health_is_200_whatever_happens() -> None:
    service = still_service(ready=False)
    service.gateway.draining = True
    answer = ask(create_app(service), "GET", "/health")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


def test_ready_says_why_not() -> None:
    service = still_service(ready=False)
    app = create_app(service)
    answer = ask(app, "GET", "/ready")
    assert answer.status_code == 503
    assert answer.json() == {"ready": False, "reason": "no node has been ready yet: 2 joining", "nodes": {"joining": 2}}
    make_ready(service, service.gateway.balancer.fleet.nodes["n1"])
    answer = ask(app, "GET", "/ready")
    assert answer.status_code == 200
    assert answer.json() == {"ready": True, "reason": "", "nodes": {"joining": 1, "ready": 1}}
    service.gateway.draining = True
    service.gateway.ready = False
    answer = ask(app, "GET", "/ready")
    assert answer.status_code == 503
    assert answer.json()["reason"].startswith("draining")


def test_ready_of_a_gateway_without_nodes() -> None:
    service = still_service(ready=False, nodes=1)
    service.gateway.node_event(service.gateway.balancer.fleet.nodes["n0"], Event.WITHDRAWN)
    answer = ask(create_app(service), "GET", "/ready")
    assert (answer.status_code, answer.json()["reason"]) == (503, "no node is configured")


def test_version() -> None:
    answer = ask(create_app(still_service()), "GET", "/api/version").json()
    assert answer["version"] == steelyard.__version__
    assert abs(answer["started_at"] - time.time()) < 100


# -- nodes


def test_a_node_is_shown_in_the_shape_of_the_contract() -> None:
    service = still_service(
        nodes=[
            {
                "name": "gpu-1",
                "url": "http://10.0.0.1:8000",
                "engine": "vllm",
                "models": ["llama", "bge"],
                "version": "v1",
                "tier": "cloud",
                "weight": 3,
                "max_in_flight": 4,
                "gpu_memory": "24GB",
                "api_key": "top-secret",
            }
        ],
        routes=[{"name": "all", "footprints": [{"when": {}, "memory": "8GB", "seconds": 2}]}],
    )
    node = service.gateway.balancer.fleet.nodes["gpu-1"]
    first, second = admit(service), admit(service)
    service.gateway.balancer.ledger.orphan(second.lease, 1000.0)
    node.observed.memory_used = 9 * GB
    node.observed.at = 997.5
    service.health.health[node] = Health(failures=2, last_error="GET /health answered 500")
    answer = ask(create_app(service), "GET", "/api/nodes")
    assert "top-secret" not in answer.text
    (shown,) = answer.json()["nodes"]
    assert shown == {
        "name": "gpu-1",
        "url": "http://10.0.0.1:8000",
        "engine": "vllm",
        "state": "ready",
        "breaker": "closed",
        "version": "v1",
        "tier": "cloud",
        "weight": 3,
        "models": ["bge", "llama"],
        "leaving": False,
        "in_flight": 2,
        "orphaned": 1,
        "max_in_flight": 4,
        "memory_capacity": 24 * GB,
        "memory_free": 8 * GB,
        "reserved": {
            "memory": 16 * GB,
            "kv_tokens": first.lease.footprint.tokens + second.lease.footprint.tokens,
            "seconds": 4.0,
            "slots": 2,
        },
        "observed": {
            "memory_used": 9 * GB,
            "memory_total": None,
            "kv_usage": None,
            "running": None,
            "waiting": None,
            "age": 2.5,
        },
        "health": {"last_error": "GET /health answered 500", "failures": 2},
        "connections": {"idle": 0, "open": 0},
        "served": 2,
    }


def test_what_has_no_limit_is_null() -> None:
    shown = ask(create_app(still_service()), "GET", "/api/nodes").json()["nodes"][0]
    assert (shown["max_in_flight"], shown["memory_capacity"], shown["memory_free"]) == (None, None, None)


def test_a_node_that_leaves_is_shown_until_it_is_gone() -> None:
    service = still_service(nodes=1)
    gateway = service.gateway
    node = gateway.balancer.fleet.nodes["n0"]
    placement = admit(service)
    gateway.upstream(node)
    gateway.balancer.fleet.withdraw(node, 1000.0)
    app = create_app(service)
    (shown,) = ask(app, "GET", "/api/nodes").json()["nodes"]
    assert (shown["state"], shown["leaving"], shown["in_flight"]) == ("draining", True, 1)
    gateway.balancer.release(placement.lease, 1000.0)
    gateway.node_event(node, Event.EMPTIED)
    assert ask(app, "GET", "/api/nodes").json() == {"nodes": []}


# -- drain and undrain

# (state, what is asked, status, state after that, changed)
STEERING = [
    (State.JOINING, "drain", 200, State.DRAINING, True),
    (State.WARMING, "drain", 200, State.DRAINING, True),
    (State.READY, "drain", 200, State.DRAINING, True),
    (State.DOWN, "drain", 200, State.DRAINING, True),
    (State.DRAINING, "drain", 200, State.DRAINING, False),
    (State.DRAINING, "undrain", 200, State.JOINING, True),
    (State.READY, "undrain", 200, State.READY, False),
    (State.DOWN, "undrain", 200, State.DOWN, False),
    (State.JOINING, "undrain", 409, State.JOINING, False),
    (State.WARMING, "undrain", 409, State.WARMING, False),
]
WAYS = {
    State.JOINING: [],
    State.WARMING: [Event.REACHED],
    State.READY: [Event.REACHED, Event.WARMED],
    State.DOWN: [Event.REACHED, Event.WARMED, Event.FAILED],
    State.DRAINING: [Event.DRAIN],
}


@pytest.mark.parametrize(("state", "asked", "status", "after", "changed"), STEERING)
def test_drain_and_undrain(state: State, asked: str, status: int, after: State, changed: bool) -> None:
    service = still_service(ready=False)
    node = service.gateway.balancer.fleet.nodes["n1"]
    for event in WAYS[state]:
        service.gateway.node_event(node, event)
    assert node.state is state
    answer = ask(create_app(service), "POST", f"/api/nodes/n1/{asked}")
    assert answer.status_code == status
    assert node.state is after
    if status == 200:
        assert answer.json()["changed"] is changed
        assert (answer.json()["node"]["name"], answer.json()["node"]["state"]) == ("n1", after.value)
    else:
        assert error_of(answer)["code"] == "impossible_transition"
        assert f"n1 is {state}" in error_of(answer)["message"]


def test_a_drained_node_gets_nothing_stays_listed_and_comes_back() -> None:
    service = still_service()
    app = create_app(service)
    ask(app, "POST", "/api/nodes/n0/drain")
    # Time passes, and the sweep looks for nodes that leave.
    clock_of(service).now += 100.0
    service.gateway.sweep(clock_of(service).now)
    assert {admit(service).node.name for _ in range(20)} == {"n1"}
    listed = {node["name"]: node["state"] for node in ask(app, "GET", "/api/nodes").json()["nodes"]}
    assert listed == {"n0": "draining", "n1": "ready"}
    ask(app, "POST", "/api/nodes/n0/undrain")
    make_ready(service, service.gateway.balancer.fleet.nodes["n0"])
    clock_of(service).now += 100.0
    assert "n0" in {admit(service).node.name for _ in range(20)}


@pytest.mark.parametrize("asked", ["drain", "undrain"])
def test_a_name_that_is_not_there(asked: str) -> None:
    answer = ask(create_app(still_service()), "POST", f"/api/nodes/n7/{asked}")
    assert answer.status_code == 404
    assert error_of(answer) == {"code": "unknown_node", "message": "there is no node 'n7'; there are: n0, n1"}


@pytest.mark.parametrize("name", ["10.0.0.1:8000", "a/b", "a b%", "näher", "drain", "a/drain"])
def test_odd_names(name: str) -> None:
    service = still_service(nodes=[{"name": name, "url": "http://10.0.0.1:8000"}])
    answer = ask(create_app(service), "POST", f"/api/nodes/{quote(name, safe='')}/drain")
    assert answer.status_code == 200, answer.text
    assert answer.json()["node"]["name"] == name
    assert service.gateway.balancer.fleet.nodes[name].state is State.DRAINING


# -- routes, queue, decisions


def test_routes_are_shown_as_they_are_in_force() -> None:
    service = still_service(
        routes=[
            {
                "name": "images",
                "match": {"path": "/sdapi/*", "models": ["sd-*"], "headers": {"X-Team": "credential"}},
                "policy": "round-robin",
                "memory": "ignore",
                "footprints": [{"when": {"width": 512}, "memory": "8GB", "seconds": 2}],
                "timeouts": {"idle": "7s"},
                "queue": {"size": 3, "wait": "4s"},
                "affinity": {"keys": ["header:X-User-ID"]},
            },
            {"name": "rest"},
        ]
    )
    answer = ask(create_app(service), "GET", "/api/routes")
    assert "credential" not in answer.text
    images, rest = answer.json()["routes"]
    assert rest["name"] == "rest"
    assert images["match"] == {"path": "/sdapi/*", "models": ["sd-*"], "headers": ["x-team"]}
    assert (images["policy"], images["memory"]) == ("round-robin", "ignore")
    assert images["footprints"] == [{"when": {"width": 512}, "memory": 8 * GB, "seconds": 2.0}]
    assert images["timeouts"] == {"connect": 2.0, "first_byte": 60.0, "idle": 7.0, "total": 1800.0}
    assert (images["queue_size"], images["queue_wait"], images["waiting"]) == (3, 4.0, 0)
    assert images["affinity_keys"] == ["header:x-user-id"]


def test_the_queue_by_lines() -> None:
    service = still_service(
        nodes=[{"name": "n0", "url": "http://a:1", "engine": "vllm", "models": ["llama", "bge"], "max_in_flight": 1}]
    )
    app = create_app(service)
    assert ask(app, "GET", "/api/queue").json() == {"length": 0, "lines": []}
    admit(service)
    for model in ("llama", "bge", "llama"):
        line_up(service, Work("openai", "chat", model))
        clock_of(service).now += 2.0
    shown = ask(app, "GET", "/api/queue").json()
    assert shown["length"] == 3
    assert [(line["model"], line["length"], line["oldest_wait"]) for line in shown["lines"]] == [
        ("llama", 2, 6.0),
        ("bge", 1, 4.0),
    ]
    assert shown["lines"][0]["route"] == "default"
    assert ask(app, "GET", "/api/routes").json()["routes"][0]["waiting"] == 3


def test_decisions_newest_first_with_reasons_in_words_and_numbers() -> None:
    service = still_service(aliases={"gpt": "llama"})
    app = create_app(service)
    work = Work("openai", "chat", "gpt", session="t\0secret-session", tenant="art", stream=True, prompt_tokens=9)
    placement = admit(service, work)
    clock_of(service).now += 5.0
    admit(service, Work("openai", "chat", "lama"))
    answer = ask(app, "GET", "/api/decisions")
    assert "secret-session" not in answer.text
    refused, placed = answer.json()["decisions"]
    assert refused["outcome"] == "unknown_model"
    assert refused["reason"] == "the model 'lama' does not exist; did you mean 'llama'?"
    assert (refused["node"], refused["route"], refused["score"], refused["queued"]) == (None, None, None, None)
    assert placed["outcome"] == "placed"
    assert placed["node"] == placement.node.name
    assert placed["reason"].startswith("least-work ")
    assert placed["reason"].endswith(" among 2")
    assert (placed["considered"], placed["queued"], placed["route"]) == (2, 0.0, "default")
    assert (placed["model"], placed["asked_model"], placed["tenant"]) == ("llama", "gpt", "art")
    assert placed["stream"] is True
    assert placed["footprint"]["source"] == "analytic"
    assert refused["at"] - placed["at"] == pytest.approx(5.0, abs=0.01)
    assert abs(refused["at"] - time.time()) < 100


def test_decisions_can_be_narrowed_down() -> None:
    service = still_service(aliases={"gpt": "llama"})
    app = create_app(service)
    for model in ["llama", "gpt", "nope"] * 20:
        admit(service, Work("openai", "chat", model))

    def shown(query: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = ask(app, "GET", f"/api/decisions{query}").json()["decisions"]
        return found

    assert len(shown("")) == 60
    assert len(shown("?limit=7")) == 7
    assert {d["node"] for d in shown("?node=n0")} == {"n0"}
    assert len(shown("?node=n0")) + len(shown("?node=n1")) == 40
    assert len(shown("?model=gpt")) == 20
    assert len(shown("?model=llama")) == 40  # what an alias became counts too
    assert shown("?model=nope&node=n0") == []
    assert [d["asked_model"] for d in shown("?limit=2&model=nope")] == ["nope", "nope"]


def test_texts_of_clients_are_cut_and_can_always_be_shown() -> None:
    service = still_service()
    admit(service, Work("openai", "chat", "m" * 5000))
    admit(service, Work("openai", "chat", "\ud800", version="\udfff"))
    surrogate, long = ask(create_app(service), "GET", "/api/decisions").json()["decisions"]
    assert len(long["model"]) == 256
    assert long["model"].endswith("…")
    assert len(long["reason"]) == 256
    assert surrogate["model"] == "?"


# -- errors


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code", "says"),
    [
        ("GET", "/nothing", None, 404, "not_found", "/nothing"),
        ("GET", "/docs", None, 404, "not_found", "/docs"),
        ("GET", "/redoc", None, 404, "not_found", "/redoc"),
        ("GET", "/api/nodes/", None, 404, "not_found", "/api/nodes/"),
        ("DELETE", "/api/nodes", None, 405, "method_not_allowed", "DELETE"),
        ("GET", "/api/explain", None, 405, "method_not_allowed", "GET"),
        ("GET", "/api/decisions?limit=0", None, 422, "invalid_request", "limit: input should be greater than"),
        ("GET", "/api/decisions?limit=1001", None, 422, "invalid_request", "limit: input should be less than"),
        ("GET", "/api/decisions?limit=x", None, 422, "invalid_request", "limit: input should be a valid integer"),
        ("POST", "/api/explain", b"", 422, "invalid_request", "body: field required"),
        ("POST", "/api/explain", b"[]", 422, "invalid_request", "body: a JSON object is needed"),
        ("POST", "/api/explain", b"{", 422, "invalid_request", "not valid JSON"),
        ("POST", "/api/explain", b"{}", 422, "invalid_request", "path: field required"),
        ("POST", "/api/explain", b'{"path":"x"}', 422, "invalid_request", "path: string should match"),
        ("POST", "/api/explain", b'{"path":"/x","pth":1}', 422, "invalid_request", "pth: extra inputs"),
        ("POST", "/api/explain", b'{"path":"/x","headers":{"a":1}}', 422, "invalid_request", "headers.a: input should"),
        ("POST", "/api/explain", b'{"path":"/x","body":' + b"[" * 100000, 400, "malformed_request", "body"),
        ("POST", "/api/explain", b'{"path":"\xff"}', 400, "malformed_request", "body"),
    ],
)
def test_errors_are_json_and_name_what_is_wrong(
    method: str, path: str, body: bytes | None, status: int, code: str, says: str
) -> None:
    headers = {"content-type": "application/json"} if body else {}
    answer = ask(create_app(still_service()), method, path, content=body, headers=headers)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert error_of(answer)["code"] == code
    assert says in error_of(answer)["message"]


def test_a_body_that_does_not_say_that_it_is_json() -> None:
    headers = {"content-type": "application/x-www-form-urlencoded"}  # what curl -d says
    answer = ask(create_app(still_service()), "POST", "/api/explain", content=b'{"path":"/x"}', headers=headers)
    assert answer.status_code == 422
    assert "Content-Type: application/json" in error_of(answer)["message"]


def test_a_wrong_value_is_not_repeated() -> None:
    body = {"path": "/x", "headers": {"authorization": ["Bearer secret-key"]}}
    answer = ask(create_app(still_service()), "POST", "/api/explain", json=body)
    assert answer.status_code == 422
    assert "secret-key" not in answer.text


def test_the_openapi_document_has_every_path() -> None:
    document = ask(create_app(still_service()), "GET", "/openapi.json").json()
    assert sorted(document["paths"]) == [
        "/api/decisions",
        "/api/explain",
        "/api/nodes",
        "/api/nodes/{name}/drain",
        "/api/nodes/{name}/undrain",
        "/api/queue",
        "/api/routes",
        "/api/version",
        "/health",
        "/metrics",
        "/ready",
    ]
    assert "HTTPValidationError" not in str(document["paths"])
    assert document["components"]["schemas"]["NodeAnswer"]["properties"]["models"]["description"]


def test_the_app_starts_with_the_rules_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEELYARD_ADMIN_TOKEN", "t")
    app = create_app(still_service())
    assert ask(app, "POST", "/api/explain", json={"path": "/x", "body": CHAT}).status_code == 401
