"""The fleet: who is a candidate for what, and when that changes."""

from __future__ import annotations

import pytest

from steelyard.core.fleet import CACHED_LISTS, SLOW_START_SECONDS, SLOW_START_SHARE, Fleet
from steelyard.core.node import Event, Node, NodeSpec, State

from .building import MODEL, add_ready, ready_fleet


def names(nodes: list[Node]) -> list[str]:
    return [node.name for node in nodes]


def candidates(
    fleet: Fleet, model: str | None = MODEL, version: str | None = None, dialect: str = "openai"
) -> list[str]:
    return names(fleet.candidates(dialect, model, version))


def test_a_name_is_taken_once() -> None:
    fleet = ready_fleet(1)
    with pytest.raises(ValueError, match="named n0 exists already"):
        fleet.add(NodeSpec("n0", "http://elsewhere"))


def test_only_ready_nodes_are_candidates() -> None:  # T24
    fleet = Fleet()
    node = fleet.add(NodeSpec("n", "http://n", models=frozenset({MODEL})))
    seen = [(node.state, candidates(fleet))]
    for event in (
        Event.REACHED,
        Event.WARMED,
        Event.FAILED,
        Event.RECOVERED,
        Event.DRAIN,
        Event.UNDRAIN,
        Event.REACHED,
        Event.WARMED,
        Event.WITHDRAWN,
    ):
        assert fleet.apply(node, event, 0.0)
        seen.append((node.state, candidates(fleet)))
    assert [state for state, _ in seen] == [
        State.JOINING,
        State.WARMING,
        State.READY,
        State.DOWN,
        State.READY,
        State.DRAINING,
        State.JOINING,
        State.WARMING,
        State.READY,
        State.GONE,
    ]
    assert all(found == (["n"] if state is State.READY else []) for state, found in seen)


def test_dialect_model_and_version_each_choose() -> None:
    fleet = Fleet()
    add_ready(fleet, "llm-1", version="v1")
    add_ready(fleet, "llm-2", version="v2")
    add_ready(fleet, "images", engine="sdwebui", models=frozenset({"sd-1.5"}))
    assert candidates(fleet) == ["llm-1", "llm-2"]
    assert candidates(fleet, version="v2") == ["llm-2"]
    assert candidates(fleet, version="v3") == []
    assert candidates(fleet, "sd-1.5") == ["images"]
    assert candidates(fleet, "sd-1.5", dialect="sdwebui") == ["images"]
    assert candidates(fleet, None, dialect="anthropic") == ["llm-1", "llm-2"]
    assert candidates(fleet, None) == ["llm-1", "llm-2", "images"]
    assert candidates(fleet, "gemma") == []


def test_versions_are_never_mixed() -> None:
    fleet = Fleet()
    for number in range(6):
        add_ready(fleet, f"n{number}", version="v1" if number % 2 else "v2")
    for version in ("v1", "v2"):
        assert {node.version for node in fleet.candidates("openai", MODEL, version)} == {version}
    assert fleet.versions(MODEL) == ["v1", "v2"]
    assert fleet.versions("gemma") == []


def test_a_list_is_one_object_until_the_fleet_changes() -> None:
    fleet = ready_fleet(3)
    before, generation = fleet.candidates("openai", MODEL, None), fleet.generation
    assert fleet.candidates("openai", MODEL, None) is before
    assert not fleet.apply(fleet.nodes["n0"], Event.WARMED, 0.0), "ready already: nothing changes"
    assert fleet.candidates("openai", MODEL, None) is before
    assert fleet.generation == generation
    add_ready(fleet, "n3")
    assert fleet.generation > generation
    assert names(fleet.candidates("openai", MODEL, None)) == ["n0", "n1", "n2", "n3"]
    assert names(before) == ["n0", "n1", "n2"], "who holds the old list holds it unchanged"


def test_a_changed_spec_counts_at_once() -> None:
    fleet = ready_fleet(2)
    assert candidates(fleet) == ["n0", "n1"]
    node = fleet.nodes["n0"]
    fleet.reconfigure(node, NodeSpec("n0", node.spec.url, engine="vllm", models=node.models, weight=0))
    assert candidates(fleet) == ["n1"]


def test_what_a_node_tells_of_itself_counts_unless_its_spec_says_otherwise() -> None:
    fleet = Fleet()
    open_, told = fleet.add(NodeSpec("a", "http://a")), fleet.add(NodeSpec("b", "http://b", "sglang", frozenset({"x"})))
    for node in (open_, told):
        fleet.recognised(node, "vllm", ["llama", "llama-lora"])
    assert (open_.engine, open_.models) == ("vllm", frozenset({"llama", "llama-lora"}))
    assert (told.engine, told.models) == ("sglang", frozenset({"x"}))
    generation = fleet.generation
    fleet.recognised(open_, "vllm", ["llama-lora", "llama"])
    assert fleet.generation == generation, "it told nothing new"
    fleet.recognised(open_, "vllm", None)
    assert open_.models is None


def test_a_node_that_nobody_recognised_is_asked_for_any_model() -> None:
    fleet = ready_fleet(1, models=None)
    assert candidates(fleet, "whatever") == ["n0"]
    assert fleet.candidates("openai", "whatever", None) is fleet.candidates("openai", "else", None)


def test_an_adapter_is_served_by_the_nodes_of_its_base_unless_some_name_it() -> None:
    fleet = Fleet()
    add_ready(fleet, "base")
    add_ready(fleet, "other", models=frozenset({"gemma"}))
    assert candidates(fleet, "llama:legal") == ["base"]
    assert candidates(fleet, "llama:art") == ["base"]
    assert candidates(fleet, "qwen:legal") == []
    add_ready(fleet, "own", models=frozenset({"llama:legal"}))
    assert candidates(fleet, "llama:legal") == ["own"]
    assert candidates(fleet, "llama:art") == ["base"]
    add_ready(fleet, "any", models=None)
    assert candidates(fleet, "llama:legal") == ["own", "any"]


def test_an_ollama_model_is_found_without_its_tag_and_listed_with_it() -> None:
    fleet = Fleet()
    listed = frozenset({"llama3:latest"})
    add_ready(fleet, "ollama", engine="ollama", models=listed)
    add_ready(fleet, "other", models=listed)
    assert candidates(fleet, "llama3") == ["ollama"]
    assert candidates(fleet, "llama3:latest") == ["ollama", "other"]
    assert candidates(fleet, "llama3:8b") == []
    add_ready(fleet, "exact", models=frozenset({"llama3"}))
    assert candidates(fleet, "llama3") == ["ollama", "exact"]
    assert candidates(fleet, "llama3") == ["ollama", "exact"], "from the cache"
    assert list(fleet.models()) == ["llama3:latest", "llama3"]


def test_who_has_a_model_whatever_its_state() -> None:
    fleet = ready_fleet(2, version="v1")
    fleet.apply(fleet.nodes["n1"], Event.FAILED, 0.0)
    add_ready(fleet, "zero", weight=0)
    add_ready(fleet, "images", engine="sdwebui")
    add_ready(fleet, "other", models=frozenset({"gemma"}))
    assert names(fleet.having("openai", MODEL)) == ["n0", "n1", "zero", "images"]
    assert names(fleet.having("anthropic", f"{MODEL}:legal")) == ["n0", "n1", "zero"]
    assert fleet.having("openai", "qwen") == []


def test_names_that_clients_make_up_fill_no_cache() -> None:
    fleet = ready_fleet(2, version="v1")
    add_ready(fleet, "any", models=None)
    for number in range(5000):
        assert candidates(fleet, f"made-up-{number}") == ["any"]
        assert candidates(fleet, f"llama:made-up-{number}") == ["any"]
        assert candidates(fleet, MODEL, f"v{number + 2}") == []
    assert len(fleet._candidates) <= 3


def test_the_cache_is_bounded_and_what_is_beyond_is_still_found() -> None:
    fleet = Fleet()
    models = frozenset(f"m{number}" for number in range(CACHED_LISTS + 50))
    add_ready(fleet, "n", models=models)
    for model in models:
        assert candidates(fleet, model) == ["n"]
    assert len(fleet._candidates) == CACHED_LISTS
    assert all(candidates(fleet, model) == ["n"] for model in models)


def test_the_models_of_nodes_of_any_state() -> None:
    fleet = ready_fleet(2)
    fleet.add(NodeSpec("joining", "http://j", models=frozenset({"gemma", MODEL})))
    fleet.add(NodeSpec("unknown", "http://u"))
    assert {model: names(nodes) for model, nodes in fleet.models().items()} == {
        MODEL: ["n0", "n1", "joining"],
        "gemma": ["joining"],
    }


def test_a_node_that_is_gone_is_forgotten_but_not_its_namesake() -> None:
    fleet = ready_fleet(1)
    old = fleet.nodes["n0"]
    fleet.apply(old, Event.WITHDRAWN, 0.0)
    assert fleet.nodes == {}
    fleet = ready_fleet(1)
    old = fleet.nodes["n0"]
    fleet.apply(old, Event.DRAIN, 0.0)
    new = fleet.nodes["n0"] = Node(NodeSpec("n0", "http://new"))
    fleet.apply(old, Event.EMPTIED, 0.0)
    assert fleet.nodes == {"n0": new}


def test_a_node_that_is_no_longer_wanted_drains_and_its_name_is_free_at_once() -> None:
    fleet = ready_fleet(2)
    old = fleet.nodes["n0"]
    fleet.withdraw(old, 0.0)
    assert (old.state, old.leaving) == (State.DRAINING, True)
    assert candidates(fleet) == ["n1"]
    new = fleet.add(NodeSpec("n0", "http://new"))
    fleet.withdraw(old, 0.0)
    assert fleet.nodes["n0"] is new
    fleet.apply(old, Event.EMPTIED, 1.0)
    fleet.withdraw(old, 1.0)
    assert old.state is State.GONE
    assert fleet.nodes["n0"] is new


# -- slow start


def test_the_first_nodes_of_a_fleet_have_nobody_to_leave_the_work_to() -> None:
    fleet = ready_fleet(3)
    add_ready(fleet, "soon", now=SLOW_START_SECONDS - 1)
    assert fleet.ramping == set()
    late = add_ready(fleet, "late", now=SLOW_START_SECONDS)
    assert fleet.ramping == {late}


@pytest.mark.parametrize(
    ("age", "share"), [(0.0, SLOW_START_SHARE), (3.0, 0.1), (15.0, 0.5), (29.0, 29 / 30), (30.0, 1.0), (99.0, 1.0)]
)
def test_the_share_grows_with_time_and_is_never_zero(age: float, share: float) -> None:
    fleet = ready_fleet(1)
    late = add_ready(fleet, "late", now=100.0)
    assert fleet.share(late, 100.0 + age) == pytest.approx(share)
    assert (late in fleet.ramping) == (share < 1.0)


def test_a_node_that_never_became_ready_counts_in_full() -> None:
    fleet = Fleet()
    assert fleet.share(fleet.add(NodeSpec("n", "http://n")), 0.0) == 1.0


def test_a_node_that_was_down_starts_slowly_again_and_one_that_leaves_ready_does_not_go_on() -> None:
    fleet = ready_fleet(2)
    node = fleet.nodes["n0"]
    fleet.apply(node, Event.FAILED, 1.0)
    assert fleet.ramping == set()
    fleet.apply(node, Event.RECOVERED, 2.0)
    assert fleet.ramping == {node}
    assert fleet.share(node, 2.0) == SLOW_START_SHARE
    fleet.apply(node, Event.DRAIN, 3.0)
    assert fleet.ramping == set()
