"""Health checks: when a node counts as there, and what it is asked. Virtual time, no sockets."""

from __future__ import annotations

import asyncio
import errno
import itertools
from typing import Any

import pytest

from steelyard.core.node import Event, State
from steelyard.core.work import Work
from steelyard.telemetry.fetch import Answer, FetchError
from steelyard.telemetry.health import FAILURES, MODELS_EVERY, SUCCESSES
from tests.telemetry.fleetlab import LONGEST, SILENT, Lab, Server, listing, refused, run, said

BUSY = Answer(503, b"")


def scene(play: Any) -> Any:
    """A test in virtual time, with a lab; at its end no task is left."""

    def test() -> None:
        async def whole() -> None:
            lab = Lab()
            try:
                await play(lab)
            finally:
                await lab.close()

        run(whole)

    test.__name__, test.__doc__ = play.__name__, play.__doc__
    return test


@scene
async def test_a_node_is_ready_only_after_its_health_and_its_models(lab: Lab) -> None:
    server = Server()
    server.health = BUSY
    node, _ = lab.node("a", server)
    await lab.next_check(node, 5)
    assert node.state is State.JOINING
    assert server.count("/v1/models") == 0, "a server that is not well is not asked for its models"
    assert lab.health(node).last_error == "GET /health answered 503"
    assert not lab.gateway.ready
    server.health = Answer(200, b"")
    await lab.next_check(node)
    assert (node.state, node.engine, node.models) == (State.READY, "vllm", frozenset({"llama"}))
    assert lab.gateway.ready


def test_how_many_checks_decide() -> None:
    """Documented numbers; the scenes below count in them."""
    assert (FAILURES, SUCCESSES) == (3, 2)


@scene
async def test_three_failures_in_a_row_make_a_node_down_and_two_passes_bring_it_back(lab: Lab) -> None:
    node, server = lab.node()
    await lab.until(node, State.READY)
    for problem in (BUSY, SILENT, FetchError("the node closed the connection")):
        server.health = problem
        await lab.next_check(node, FAILURES - 1)
        assert node.state is State.READY
        server.health = Answer(200, b"")
        await lab.next_check(node)
        assert lab.health(node).failures == 0, "one pass ends the row"
        server.health = problem
        await lab.next_check(node, FAILURES - 1)
        assert node.state is State.READY
        await lab.next_check(node)
        assert node.state is State.DOWN
        server.health = Answer(200, b"")
        await lab.next_check(node, SUCCESSES - 1)
        assert node.state is State.DOWN
        await lab.next_check(node)
        assert node.state is State.READY


@scene
async def test_health_that_is_503_for_a_while_takes_the_node_out_for_that_while(lab: Lab) -> None:
    node, server = lab.node()
    await lab.until(node, State.READY)
    server.health = BUSY
    began = lab.loop.time()
    await lab.until(node, State.DOWN)
    assert lab.loop.time() - began <= FAILURES * LONGEST + 0.1
    assert lab.fleet.candidates("openai", "llama", None) == []
    await asyncio.sleep(30)
    assert node.state is State.DOWN
    server.health = Answer(200, b"")
    began = lab.loop.time()
    await lab.until(node, State.READY)
    assert lab.loop.time() - began <= SUCCESSES * LONGEST + 0.1
    assert lab.fleet.candidates("openai", "llama", None) == [node]


@scene
async def test_a_refused_connection_makes_a_node_down_at_once_and_ends_what_it_computed_for_nobody(lab: Lab) -> None:
    node, server = lab.node()
    await lab.until(node, State.READY)
    route = lab.gateway.settings.routes[0]
    placement = lab.gateway.balancer.admit(Work("openai", "chat", "llama"), route, lab.loop.time())
    lab.gateway.balancer.ledger.orphan(placement.lease, lab.loop.time())
    assert node.orphaned == 1
    server.health = refused()
    await lab.next_check(node)
    assert node.state is State.DOWN
    assert node.orphaned == node.in_flight == 0


@scene
async def test_two_passes_are_needed_too_when_a_request_found_nobody_there(lab: Lab) -> None:
    node, _ = lab.node()
    await lab.until(node, State.READY)
    await lab.next_check(node, 5)
    for _ in range(3):
        lab.gateway.node_refused(node)
        await lab.next_check(node)
        assert node.state is State.DOWN, "what passed before does not count"
        await lab.next_check(node)
        assert node.state is State.READY


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_that_the_gateway_has_no_descriptors_left_is_no_failure_of_the_node(number: int) -> None:
    @scene
    async def play(lab: Lab) -> None:
        node, server = lab.node()
        await lab.until(node, State.READY)
        server.health = FetchError("cannot connect: Too many open files", OSError(number, "Too many open files"))
        await lab.next_check(node, 3 * FAILURES)
        assert (node.state, lab.health(node).failures) == (State.READY, 0)
        assert "no file descriptors left" in lab.health(node).last_error

    play()


@pytest.mark.parametrize("missing", [SILENT, BUSY, Answer(500, b"")], ids=["silent", "503", "500"])
def test_a_list_of_models_that_does_not_come_is_waited_for(missing: Answer | FetchError) -> None:
    """It must not make an engine `generic`, which is asked for every model."""

    @scene
    async def play(lab: Lab) -> None:
        server = Server()
        server.models = missing
        node, _ = lab.node("a", server)
        await lab.next_check(node, 4)
        assert (node.state, node.engine, node.models) == (State.WARMING, "auto", None)
        assert "what it serves is not known yet: GET /v1/models" in lab.health(node).last_error
        server.models = listing("llama")
        await lab.next_check(node)
        assert (node.state, node.engine, node.models) == (State.READY, "vllm", frozenset({"llama"}))
        assert lab.health(node).last_error == ""

    play()


@scene
async def test_where_engine_and_models_are_configured_nothing_is_waited_for(lab: Lab) -> None:
    server = Server()
    server.models = SILENT
    node, _ = lab.node("a", server, engine="openai", models=frozenset({"m"}))
    await lab.next_check(node)
    assert (node.state, node.engine, node.models) == (State.READY, "openai", frozenset({"m"}))


@scene
async def test_a_ready_node_keeps_its_models_when_the_list_does_not_come(lab: Lab) -> None:
    node, server = lab.node()
    await lab.until(node, State.READY)
    server.models = SILENT
    await lab.next_check(node, 2 * MODELS_EVERY)
    assert server.count("/v1/models") >= 2
    assert (node.state, node.models) == (State.READY, frozenset({"llama"}))


@scene
async def test_models_that_come_and_go_are_seen(lab: Lab) -> None:
    node, server = lab.node()
    await lab.until(node, State.READY)
    server.models = listing("llama", "llama-adapter")
    await lab.next_check(node, MODELS_EVERY)
    assert node.models == {"llama", "llama-adapter"}
    assert lab.fleet.candidates("openai", "llama-adapter", None) == [node]
    server.models = listing("llama")
    await lab.next_check(node, MODELS_EVERY)
    assert lab.fleet.candidates("openai", "llama-adapter", None) == []


@scene
async def test_a_generic_server_is_asked_again_what_it_is(lab: Lab) -> None:
    server = Server()
    server.models = None
    node, _ = lab.node("a", server)
    await lab.until(node, State.READY)
    assert (node.engine, node.models) == ("generic", None)
    server.models = listing("llama")
    await lab.next_check(node, MODELS_EVERY)
    assert (node.engine, node.models) == ("vllm", frozenset({"llama"}))


@scene
async def test_another_server_at_the_address_of_one_that_went_is_recognised(lab: Lab) -> None:
    server = Server()
    server.models = None
    server.pages = {
        "/internal/ping": said({}),
        "/sdapi/v1/sd-models": said([{"model_name": "sd", "title": "sd.safetensors [abc]"}]),
    }
    node, _ = lab.node("a", server)
    await lab.until(node, State.READY)
    assert node.engine == "sdwebui"
    server.pages = {"/internal/ping": refused()}
    await lab.until(node, State.DOWN)
    lab.servers["a"] = Server()
    await lab.until(node, State.READY)
    assert (node.engine, node.models) == ("vllm", frozenset({"llama"}))


@scene
async def test_what_fails_in_a_way_that_nobody_foresaw_is_a_failed_check_and_the_next_one_comes(lab: Lab) -> None:
    node, server = lab.node()
    other, _ = lab.node("b")
    await lab.until(node, State.READY)
    server.health = UnicodeEncodeError("ascii", "é", 0, 1, "ordinal not in range")
    await lab.next_check(node, FAILURES)
    assert node.state is State.DOWN
    assert lab.health(node).last_error.startswith("the check failed: UnicodeEncodeError: ")
    server.health = Answer(200, b"")
    await lab.until(node, State.READY)
    assert other.state is State.READY


@scene
async def test_a_waiter_that_fails_does_not_end_the_checks(lab: Lab) -> None:
    node, server = lab.node()
    await lab.until(node, State.READY)
    apply, raised = lab.gateway.node_event, []

    def node_event(of: object, event: Event) -> bool:
        apply(node, event)
        raised.append(event)
        raise ExceptionGroup("waiters", [RuntimeError("one of them")])

    lab.gateway.node_event = node_event  # type: ignore[method-assign]
    server.health = BUSY
    await lab.next_check(node, FAILURES + 1)
    assert raised
    lab.gateway.node_event = apply  # type: ignore[method-assign]
    server.health = Answer(200, b"")
    await lab.until(node, State.READY)


@scene
async def test_json_that_is_nested_too_deeply_is_no_list(lab: Lab) -> None:
    server = Server()
    server.models = Answer(200, b"[" * 100_000)
    node, _ = lab.node("a", server)
    await lab.until(node, State.READY)
    assert node.engine == "generic"


@scene
async def test_the_task_of_a_node_that_left_ends(lab: Lab) -> None:
    node, server = lab.node()
    await lab.until(node, State.READY)
    lab.fleet.withdraw(node, lab.loop.time())
    await lab.next_check(node)
    assert node.state is State.DRAINING, "it still finishes its requests, and is still checked"
    lab.gateway.node_event(node, Event.EMPTIED)
    await asyncio.sleep(LONGEST + 0.1)
    assert node not in lab.checks.health
    asked = len(server.asked)
    await asyncio.sleep(10 * LONGEST)
    assert len(server.asked) == asked


@scene
async def test_checks_do_not_come_in_step(lab: Lab) -> None:
    node, server = lab.node()
    await lab.next_check(node, 30)
    times = [at for at, path in server.asked if path == "/health"]
    pauses = [after - before for before, after in itertools.pairwise(times)]
    assert all(0.79 < pause < 1.21 for pause in pauses)
    assert len({round(pause, 3) for pause in pauses}) > 10


@scene
async def test_a_fresh_look_comes_before_its_time_and_believes_what_it_finds(lab: Lab) -> None:
    lab.checks.interval = 60.0
    node, server = lab.node("a", models=frozenset({"written"}))
    await lab.until(node, State.READY)
    server.models = None
    began = lab.loop.time()
    lab.fleet.reconfigure(node, type(node.spec)("a", node.spec.url))
    lab.fleet.recognised(node, "vllm", ["written"])
    lab.checks.look_again(node)
    await asyncio.sleep(0.1)
    assert lab.loop.time() - began < 1
    assert (node.engine, node.models, node.state) == ("generic", None, State.READY)
