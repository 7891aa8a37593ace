"""What the admin shows and steers: a gateway that runs. `service.Service` is one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from steelyard.config.schema import Config
    from steelyard.proxy.gateway import Gateway
    from steelyard.telemetry.health import HealthChecks


class Running(Protocol):
    """A running gateway with what belongs to it."""

    config: Config
    """Replaced by a reload."""
    started_at: float
    """Unix time."""
    gateway: Gateway
    health: HealthChecks
