"""Emulated GPU nodes: memory that runs out, compute that is shared, real dialects, and faults on demand."""

from steelyard.emulator.faults import FaultError, Faults, Stall, Status, parse_faults
from steelyard.emulator.fleet import EmulatedFleet, uniform
from steelyard.emulator.node import EmulatedNode
from steelyard.emulator.profile import KINDS, EmulatorError, ImageTables, Kind, NodeProfile

__all__ = [
    "KINDS",
    "EmulatedFleet",
    "EmulatedNode",
    "EmulatorError",
    "FaultError",
    "Faults",
    "ImageTables",
    "Kind",
    "NodeProfile",
    "Stall",
    "Status",
    "parse_faults",
    "uniform",
]
