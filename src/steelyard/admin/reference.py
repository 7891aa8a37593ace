"""docs/metrics.md, made from the metrics: `python -m steelyard.admin.reference --write FILE | --check FILE`."""

from __future__ import annotations

import sys
from pathlib import Path

from steelyard.admin.metrics import FAMILIES

_HEAD = """\
# Metrics

<!-- Made from src/steelyard/admin/metrics.py by `make docs`. Change the descriptions there. -->

`GET /metrics` on the admin listener (127.0.0.1:9901) answers in the text format of Prometheus. It needs no token. To
let a scraper of another machine in, listen wide (`admin: 0.0.0.0:9901`) and set `STEELYARD_ADMIN_TOKEN`: the rest of
the admin API then asks for it.

Labels are bounded. `node` is the name of a node that exists: when it is gone its series are gone. `route` is a route of
the configuration (`default` where there are none). Both are empty for requests that ended before there was one, such as
those with a wrong key. Models, tenants and sessions are not in labels; they are in the access log.

Times are seconds and sizes are bytes. Histograms have bounds from 5 ms to 10 minutes.

| metric | type | labels | meaning |
|---|---|---|---|
"""

_EXAMPLES = """
Besides these there are `process_*` (CPU, memory, file descriptors) and `python_gc_*` of the Python client.

## Questions and answers

Share of requests that failed, by route, in the last 5 minutes. Who hung up is no failure of ours; an
error that a node answers is relayed whole, so its outcome is `ok`, and the status tells it:

```promql
sum by (route) (
    rate(steelyard_requests_total{outcome!~"ok|client_gone"}[5m])
    or rate(steelyard_requests_total{outcome="ok", status=~"5.."}[5m])
  )
  / sum by (route) (rate(steelyard_requests_total[5m]))
```

Time to the first token of the slowest twentieth of streams, by node:

```promql
histogram_quantile(0.95, sum by (node, le) (rate(steelyard_first_token_seconds_bucket[5m])))
```

Output tokens a second, all nodes together:

```promql
sum(rate(steelyard_completion_tokens_total[1m]))
```

Nodes that are down or still joining, to alert on when it lasts (`for: 2m`):

```promql
sum by (node) (steelyard_node_state{state=~"down|joining"}) == 1
```

Is there too little GPU? Seconds that the last tenth of requests stood in the line, and how many stand there now:

```promql
histogram_quantile(0.9, sum by (le) (rate(steelyard_queue_seconds_bucket[5m])))
sum by (route) (steelyard_queue_length)
```
"""


def reference() -> str:
    """The document."""
    rows = []
    for family in FAMILIES:
        labels = " ".join(f"`{label}`" for label in family.labels)
        rows.append(f"| `{family.name}` | {family.kind} | {labels} | {family.help} |\n".replace("|  |", "| |"))
    return _HEAD + "".join(rows) + _EXAMPLES


def main(arguments: list[str]) -> int:
    """Write the file, or check that it is as it would be written. The exit code."""
    if len(arguments) != 2 or arguments[0] not in ("--write", "--check"):
        print("usage: python -m steelyard.admin.reference --write FILE | --check FILE", file=sys.stderr)
        return 2
    path = Path(arguments[1])
    if arguments[0] == "--write":
        path.write_text(reference(), encoding="utf-8")
        return 0
    if not path.exists() or path.read_text(encoding="utf-8") != reference():
        print(f"{path} is not what the metrics say; run `make docs`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
