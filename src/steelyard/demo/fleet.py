"""The fleet of the demo, and the gateway's configuration for it."""

from __future__ import annotations

from typing import Any

from steelyard.emulator import EmulatedNode, NodeProfile

TIME_SCALE = 0.25
"""Real seconds per emulated second: four times quicker than real cards, so that something happens while one looks."""
CARD = 24_000_000_000
FLEET: tuple[NodeProfile, ...] = (
    *(NodeProfile(kind="sd", name=f"sd-{number}", gpu_memory=CARD) for number in range(1, 5)),
    *(NodeProfile(kind="llm", name=f"llm-{number}", gpu_memory=CARD) for number in range(1, 4)),
    NodeProfile(kind="whisper", name="whisper-1", gpu_memory=CARD),
)


def configuration(nodes: list[EmulatedNode], port: int, admin_port: int) -> dict[str, Any]:
    """The gateway's configuration: the defaults, and what images weigh. Ports: 0 is a free one."""
    tables = nodes[0].profile.images
    footprints = [
        {
            "when": {"width": side, "height": side},
            "memory": tables.job_memory(side * side),
            "seconds": f"{tables.job_seconds(side * side, tables.steps) * TIME_SCALE:.3f}s",
        }
        for side in (512, 1024)
    ]
    return {
        "listen": f"127.0.0.1:{port}",
        "admin": f"127.0.0.1:{admin_port}",
        "nodes": [{"name": node.name, "url": node.url, "gpu_memory": node.profile.gpu_memory} for node in nodes],
        "routes": [
            {"name": "webui", "match": {"path": "/sdapi/*"}, "footprints": footprints},
            {"name": "images", "match": {"path": "/v1/images/*"}, "footprints": footprints},
            {"name": "rest"},
        ],
    }
