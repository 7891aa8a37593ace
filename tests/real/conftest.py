"""Two real engines and a real gateway before them, for all tests here. `make test-real` prepares what they need."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.real import prepare
from tests.real.engine import Engine
from tests.real.gateway import Gateway, eventually, urls


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("real")


@pytest.fixture(scope="session")
def need() -> Callable[[str], str]:
    """``need("curl")`` is the path of that program; unlike elsewhere, nothing here is skipped where it is missing."""

    def need(program: str) -> str:
        path = shutil.which(program)
        if path is None:
            pytest.fail(f"{program} is not installed")
        return path

    return need


@pytest.fixture(scope="session")
def engines(folder: Path) -> Iterator[tuple[Engine, Engine]]:
    if not prepare.is_prepared():
        # No skip: whoever runs these tests wants to know.
        pytest.fail(f"the real engine is not prepared in {prepare.cache()}; `make test-real` does it")
    pair = Engine("llama-1", folder), Engine("llama-2", folder)
    try:
        for engine in pair:
            engine.start()
        for engine in pair:
            engine.wait()
        yield pair
    finally:
        for engine in pair:
            engine.kill()


@pytest.fixture(scope="session")
def shared_gateway(folder: Path, engines: tuple[Engine, Engine]) -> Iterator[Gateway]:
    running = Gateway.before(folder, "both", urls(*engines))
    try:
        running.wait("llama-1", "llama-2")
        yield running
    finally:
        code = running.stop()
    assert code == 0, running.said()


@pytest.fixture
def gateway(shared_gateway: Gateway, engines: tuple[Engine, Engine]) -> Iterator[Gateway]:
    """The gateway before both engines; whatever a test did, no lease is left and both nodes come back."""
    yield shared_gateway
    for engine in engines:
        if not engine.alive:
            engine.start()
            engine.wait()
    eventually(shared_gateway.idle, "all leases zero")
    shared_gateway.wait("llama-1", "llama-2")


@pytest.fixture
def lone_gateway(folder: Path, engines: tuple[Engine, Engine], tmp_path: Path) -> Iterator[Gateway]:
    """A gateway before the first engine only."""
    running = Gateway.before(tmp_path, "lone", urls(engines[0]))
    try:
        running.wait("llama-1")
        yield running
        eventually(running.idle, "all leases zero")
    finally:
        code = running.stop()
    assert code == 0, running.said()
