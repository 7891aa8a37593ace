"""The traps: seeded traces that are sent to the real gateway in front of emulated nodes, measured and judged."""
