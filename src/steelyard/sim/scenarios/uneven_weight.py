"""Trap 1, uneven weight: requests that differ by ten gigabytes are dealt out like cards."""

from __future__ import annotations

import json
from itertools import islice
from random import Random
from typing import Any

from steelyard.emulator import NodeProfile
from steelyard.emulator.profile import PIXELS_512, PIXELS_1024, ImageTables
from steelyard.sim.http_client import Request
from steelyard.sim.scenario import Expectation, Leg, Scenario, Stage
from steelyard.sim.traces import Arrival, poisson

NODES = 8
LOAD = 0.5
"""Offered load: half of the fleet has nothing to do, on average, so that memory errors are the balancer's fault."""
HEAVY = 0.2
"""Share of 1024x1024 images.

Not a critical choice: at this load round robin ends in 10-16 % out-of-memory errors for every share from 10 to 50 %
(docs/traps/uneven-weight.md has the table). With 20 % heavy ones the mean work is 3.2 s, and 3,000 requests take 40
minutes of the fleet's time.
"""
TABLES = ImageTables()
KINDS = {"512x512": (512, PIXELS_512), "1024x1024": (1024, PIXELS_1024)}


def trace(rng: Random, requests: int) -> list[Arrival]:
    """Poisson arrivals at LOAD of the fleet's capacity, HEAVY of them large."""
    light, heavy = (TABLES.job_seconds(pixels, TABLES.steps) for _, pixels in KINDS.values())
    mean = (1 - HEAVY) * light + HEAVY * heavy
    moments = poisson(rng, LOAD * NODES / mean)
    return [
        _arrival(at, "1024x1024" if rng.random() < HEAVY else "512x512", index)
        for index, at in enumerate(islice(moments, requests))
    ]


def _arrival(at: float, kind: str, index: int) -> Arrival:
    side, pixels = KINDS[kind]
    body = {"prompt": f"a steelyard on a market, no. {index}", "width": side, "height": side, "steps": TABLES.steps}
    request = Request("POST", "/sdapi/v1/txt2img", (("content-type", "application/json"),), json.dumps(body).encode())
    return Arrival(at, kind, request, TABLES.job_seconds(pixels, TABLES.steps), TABLES.job_memory(pixels))


def round_robin(stage: Stage) -> dict[str, Any]:
    """The naive balancer, from our own parts: every node in turn, whatever is on it."""
    return {"nodes": stage.node_list(), "defaults": {"policy": "round-robin", "memory": "ignore"}}


SCENARIO = Scenario(
    name="uneven-weight",
    title="Trap 1: uneven weight",
    story=(
        "Eight cards of 24 GB. A 512x512 image takes 8 GB and 2 s, a 1024x1024 one 18 GB and 8 s. Round robin puts "
        "18 GB on top of 8, and the job fails, while other cards are idle."
    ),
    fleet=(NodeProfile(kind="sd", gpu_memory=24_000_000_000),) * NODES,
    trace=trace,
    before=Leg("round-robin, memory ignored", round_robin),
    expectations=(
        Expectation("before", "oom_rate", 0.10, 0.20, "the naive balancer runs cards out of memory at half load"),
        Expectation("before", "errors", 0, 0, "nothing else goes wrong"),
    ),
    requests=3000,
    requests_short=400,
)
