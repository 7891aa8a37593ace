"""The runner itself, small and quick: the real gateway in its process, emulated nodes, sockets."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from steelyard.sim.gateway_process import GatewayAddressInUse, GatewayError, GatewayProcess
from steelyard.sim.live import ScenarioResult, play
from steelyard.sim.load import Record
from steelyard.sim.scenario import Expectation, Leg, Scenario, Stage
from steelyard.sim.scenarios.uneven_weight import SCENARIO

NOWHERE: dict[str, Any] = {
    "listen": "127.0.0.1:0",
    "admin": "127.0.0.1:0",
    "nodes": [{"url": "http://127.0.0.1:1"}],
}
MACHINE = "the time scale suits the machine"
"""The one check that depends on how busy this machine is."""


def weighed(stage: Stage) -> dict[str, Any]:
    """Nothing goes where it does not fit; who fits nowhere waits."""
    table = [
        {"when": {"width": 512, "height": 512}, "memory": "8GB", "seconds": stage.real(2)},
        {"when": {"width": 1024, "height": 1024}, "memory": "18GB", "seconds": stage.real(8)},
    ]
    return {
        "nodes": stage.node_list(),
        "defaults": {"policy": "least-work", "memory": "enforce"},
        "routes": [{"name": "images", "footprints": table, "queue": {"wait": "60s"}}],
    }


def run(scenario: Scenario, directory: Path, **options: Any) -> ScenarioResult:
    return asyncio.run(play(scenario, directory, **options))


def broken(result: ScenarioResult) -> list[str]:
    return [check.name for leg in result.legs for check in leg.audit if not check.holds and check.name != MACHINE]


def test_both_legs_of_a_scene_on_the_same_trace(tmp_path: Path) -> None:
    scenario = replace(
        SCENARIO,
        after=Leg("least-work, memory enforced", weighed),
        expectations=(
            Expectation("before", "oom", at_least=1, why="they collide"),
            Expectation("after", "oom", 0, 0, "they do not"),
        ),
    )
    seen: list[tuple[str, Record]] = []
    result = run(
        scenario, tmp_path, requests=60, time_scale=0.03, progress=lambda leg, record: seen.append((leg, record))
    )
    assert broken(result) == []
    assert [leg.name for leg in result.legs] == ["before", "after"]
    assert [verdict.holds for verdict in result.verdicts] == [True, True]
    before, after = (leg.figures for leg in result.legs)
    assert before["requests"] == after["requests"] == 60
    assert before["answered"] + before["oom"] == 60
    assert after["answered"] == 60
    assert after["useful_gpu_seconds"] > before["useful_gpu_seconds"], "what ran out of memory was not useful"
    for leg in result.legs:
        assert sum(node.requests for node in leg.nodes) == 60
        assert sum(node.finished for node in leg.nodes) == leg.figures["answered"]
    dealt = [node.requests for node in result.legs[0].nodes]
    assert max(dealt) - min(dealt) <= 1, "round robin deals evenly"
    assert [leg for leg, _ in seen].count("before") == [leg for leg, _ in seen].count("after") == 60
    assert (tmp_path / "after" / "access.jsonl").read_text().count("\n") == 60, "a line a request"


def test_what_does_not_come_out_as_expected_fails(tmp_path: Path) -> None:
    scenario = replace(SCENARIO, expectations=(Expectation("before", "answered", 11, 11),))
    result = run(scenario, tmp_path, requests=10, time_scale=0.02)
    assert broken(result) == []
    assert not result.holds
    assert [verdict.value for verdict in result.verdicts] == [10]


def test_a_leg_that_is_wrongly_configured_says_why(tmp_path: Path) -> None:
    scenario = replace(SCENARIO, before=Leg("wrong", lambda stage: {"nodes": stage.node_list(), "polcy": "x"}))
    with pytest.raises(GatewayError, match="polcy: unknown key"):
        run(scenario, tmp_path, requests=10)


def test_a_port_in_use_is_told_from_other_errors(tmp_path: Path) -> None:
    async def main() -> None:
        async with GatewayProcess(NOWHERE, tmp_path / "a") as first:
            second = GatewayProcess({**NOWHERE, "listen": f"127.0.0.1:{first.port}"}, tmp_path / "b")
            with pytest.raises(GatewayAddressInUse, match=f"cannot listen on 127.0.0.1:{first.port}"):
                await second.start()
            assert second.exit_code == 2
        assert first.exit_code == 0

    asyncio.run(main())


def test_the_gateway_ends_with_its_runner(tmp_path: Path) -> None:
    """Also when the runner is cancelled while it starts."""

    async def main() -> None:
        before = {child.pid for child in psutil.Process().children(recursive=True)}
        starting = asyncio.get_running_loop().create_task(GatewayProcess(NOWHERE, tmp_path).start())
        while {child.pid for child in psutil.Process().children(recursive=True)} == before:
            await asyncio.sleep(0.01)
        starting.cancel()
        await asyncio.wait([starting])
        assert starting.cancelled()
        assert {child.pid for child in psutil.Process().children(recursive=True)} == before

    asyncio.run(main())


def test_nodes_that_do_not_come_are_named(tmp_path: Path) -> None:
    async def main() -> None:
        async with GatewayProcess(NOWHERE, tmp_path) as gateway:
            with pytest.raises(GatewayError, match="of 1 nodes not all are ready"):
                await gateway.wait_for_nodes(1, timeout=0.2)

    asyncio.run(main())
