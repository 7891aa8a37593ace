"""Wire-speed benchmark: Steelyard beside nginx, HAProxy, Envoy and vllm-router, all in one run.

Run it from the repository root with ``python -m bench``; ``docs/bench.md`` says how each figure is taken.
"""
