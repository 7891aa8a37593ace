"""Time of one decision of the core, without any I/O: `Balancer.admit`, which chooses and reserves.

``python -m bench.decision`` prints one line of JSON: figure name -> microseconds, one value a round.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import pkgutil
import random
import statistics
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from steelyard.core.policies import Policy

NODE_COUNTS = (8, 64, 1000)
# Decisions of a batch, all of them live at its end: 64 nodes then have 4 more each, as in a busy fleet.
BATCH = 256
# Live requests that a node has on average before the batches begin, so that no node is just idle.
LOAD = 4
DEFAULT_POLICY = "least-work"


def _default_policy() -> Policy:
    from steelyard.core import policies

    for module in pkgutil.iter_modules(policies.__path__):
        importlib.import_module(f"{policies.__name__}.{module.name}")
    return policies.create(DEFAULT_POLICY)


def measure(count: int, seconds: float, seed: int = 1) -> float:
    """Median CPU microseconds of one admission to a fleet of `count` nodes that serve the model, over batches."""
    from steelyard.core.balancer import Balancer
    from steelyard.core.fleet import Fleet
    from steelyard.core.node import Event, NodeSpec
    from steelyard.core.placement import Placement
    from steelyard.core.route import Route
    from steelyard.core.work import Work

    rng = random.Random(seed)
    fleet = Fleet()
    for i in range(count):
        node = fleet.add(NodeSpec(f"gpu-{i}", f"http://127.0.0.1:{i + 1}", "vllm", frozenset({"bench"})))
        fleet.apply(node, Event.REACHED, 0.0)
        fleet.apply(node, Event.WARMED, 0.0)
    route = Route("default", _default_policy())
    balancer = Balancer(fleet, rng)

    def works(number: int) -> list[Work]:
        return [
            Work(
                "openai",
                "chat",
                "bench",
                stream=True,
                repeatable=True,
                prompt_tokens=rng.randint(20, 4000),
                max_tokens=rng.randint(16, 1024),
            )
            for _ in range(number)
        ]

    for work in works(count * LOAD):
        balancer.admit(work, route, 0.0)
    gc.collect()
    gc.freeze()
    now = 1.0
    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 3:
        batch = works(BATCH)
        # CPU time: there is nothing here to wait for, and the machine's other processes are not the core's doing.
        begin = time.thread_time()
        decided = [balancer.admit(work, route, now) for work in batch]
        times.append((time.thread_time() - begin) / BATCH)
        for placement in decided:
            if not isinstance(placement, Placement):
                raise TypeError(f"{count} nodes without limits did not place a request: {placement}")
            balancer.release(placement.lease, now)
        now += 0.1
    return statistics.median(times) * 1e6


def main() -> None:
    """Command line: measure every size in every round."""
    parser = argparse.ArgumentParser(prog="python -m bench.decision", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each size in each round")
    options = parser.parse_args()
    rounds = [
        {f"us_{count}": measure(count, options.seconds, seed) for count in NODE_COUNTS}
        for seed in range(options.rounds)
    ]
    print(json.dumps(rounds))


if __name__ == "__main__":
    main()
