"""The engines an emulated node can be; each speaks the dialect of its real counterpart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.emulator.engines.base import Engine
from steelyard.emulator.engines.sdwebui import SdWebui
from steelyard.emulator.engines.triton import Triton
from steelyard.emulator.engines.vllm import Vllm
from steelyard.emulator.engines.whisper import Whisper

if TYPE_CHECKING:
    from steelyard.emulator.node import EmulatedNode

_ENGINES: dict[str, type[Engine]] = {"sd": SdWebui, "llm": Vllm, "whisper": Whisper, "classify": Triton}


def make_engine(node: EmulatedNode) -> Engine:
    """The engine of the node's kind."""
    return _ENGINES[node.profile.kind](node)
