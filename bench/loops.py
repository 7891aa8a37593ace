"""The event loop of the bench's own processes: uvloop where it is installed, else asyncio's."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeVar

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to its end on a new event loop."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)


def loop_name() -> str:
    """Name and version of the loop that `run` uses, for the report."""
    try:
        return f"uvloop {version('uvloop')}"
    except PackageNotFoundError:
        return "asyncio"
