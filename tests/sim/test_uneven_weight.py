"""The first trap: its trace, and that round robin must fail on it, by whatever seed."""

from __future__ import annotations

import json
from itertools import cycle
from random import Random

import pytest

from steelyard.emulator.compute import SharedProcessor
from steelyard.emulator.memory import Card, CudaOutOfMemory
from steelyard.sim.scenarios import uneven_weight
from steelyard.sim.scenarios.uneven_weight import SCENARIO
from steelyard.sim.traces import Arrival, offered_load

SEEDS = range(1, 9)


def test_the_same_seed_is_the_same_trace() -> None:
    assert SCENARIO.make_trace(1, 200) == SCENARIO.make_trace(1, 200)
    assert SCENARIO.make_trace(1, 200) != SCENARIO.make_trace(2, 200)
    assert SCENARIO.make_trace(1, 200) == SCENARIO.make_trace(1, 300)[:200], (
        "a short run is the beginning of a long one"
    )


def test_the_trace_is_what_the_scene_says() -> None:
    trace = SCENARIO.make_trace(1, 3000)
    assert len(trace) == 3000
    assert SCENARIO.capacity == 8
    assert offered_load(trace, SCENARIO.capacity) == pytest.approx(0.5, abs=0.05)
    heavy = [arrival for arrival in trace if arrival.kind == "1024x1024"]
    assert len(heavy) / len(trace) == pytest.approx(0.2, abs=0.03)
    weights = {(arrival.kind, round(arrival.work, 6), arrival.memory) for arrival in trace}
    assert weights == {("512x512", 2.0, 8 * 10**9), ("1024x1024", 8.0, 18 * 10**9)}
    body = json.loads(heavy[0].request.body)
    assert (body["width"], body["height"], body["steps"]) == (1024, 1024, 50)


def round_robin_on_cards(trace: list[Arrival]) -> float:
    """The out-of-memory rate of round robin, computed in virtual time with the emulator's own memory and compute."""
    cards = [Card(profile.gpu_memory) for profile in SCENARIO.fleet]
    processors = [SharedProcessor() for _ in cards]
    out_of_memory = 0
    for key, (arrival, index) in enumerate(zip(trace, cycle(range(len(cards))), strict=False)):
        for _, done in processors[index].advance(arrival.at):
            cards[index].release(done)
        try:
            cards[index].allocate(key, arrival.memory)
        except CudaOutOfMemory:
            out_of_memory += 1
        else:
            processors[index].add(arrival.at, key, arrival.work)
    return out_of_memory / len(trace)


@pytest.mark.parametrize("seed", SEEDS)
def test_round_robin_runs_out_of_memory_for_every_seed(seed: int) -> None:
    assert 0.10 <= round_robin_on_cards(SCENARIO.make_trace(seed, 3000)) <= 0.20


@pytest.mark.parametrize("heavy", [0.15, 0.2, 0.25, 0.3, 0.4, 0.5])
def test_the_mix_is_no_critical_choice(heavy: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uneven_weight, "HEAVY", heavy)
    rates = [round_robin_on_cards(uneven_weight.trace(Random(seed), 3000)) for seed in (1, 2, 3)]
    assert 0.10 <= sum(rates) / len(rates) <= 0.20


def test_at_a_tenth_of_the_load_there_is_little_to_collide(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rate comes from the load, not from how it is computed."""
    monkeypatch.setattr(uneven_weight, "LOAD", 0.05)
    assert round_robin_on_cards(uneven_weight.trace(Random(1), 3000)) < 0.02


def test_the_naive_balancer_is_made_of_our_own_parts() -> None:
    from steelyard.sim.scenario import Stage

    config = SCENARIO.before.config(Stage([("gpu-1", "http://127.0.0.1:1", SCENARIO.fleet[0])], 0.1))
    assert config["defaults"] == {"policy": "round-robin", "memory": "ignore"}
    assert config["nodes"] == [
        {"name": "gpu-1", "url": "http://127.0.0.1:1", "engine": "sdwebui", "gpu_memory": 24 * 10**9}
    ]
