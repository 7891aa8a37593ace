"""The load of the demo is what the fleet can do."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice
from random import Random

import pytest

from steelyard.demo.traffic import KINDS, mixed_traffic, silence
from steelyard.emulator.audio import audio_seconds


def test_the_same_seed_is_the_same_load() -> None:
    first, second, other = (list(islice(mixed_traffic(Random(seed)), 100)) for seed in (1, 1, 2))
    assert first == second
    assert first != other


def test_kinds_come_at_their_rates() -> None:
    arrivals = list(islice(mixed_traffic(Random(1)), 5_000))
    counts = Counter(arrival.kind for arrival in arrivals)
    for kind, (rate, _) in KINDS.items():
        assert counts[kind] / arrivals[-1].at == pytest.approx(rate, rel=0.3)


def test_every_json_request_is_json_and_streams_say_so() -> None:
    for arrival in islice(mixed_traffic(Random(1)), 300):
        if ("content-type", "application/json") in arrival.request.headers:
            assert json.loads(arrival.request.body).get("stream", False) is arrival.request.stream
        assert arrival.request.stream == (arrival.kind == "chat (stream)")


@pytest.mark.parametrize("seconds", [1.0, 3.5, 20.0])
def test_recordings_last_what_they_say(seconds: float) -> None:
    assert audio_seconds(silence(seconds)) == pytest.approx(seconds, abs=0.01)
