"""The decisions of Steelyard: pure, synchronous, without a clock, I/O, or logging.

`now` (seconds on any monotonic clock) and `rng` are arguments of whatever needs them, so that the proxy,
the bridges and the simulator drive one and the same code.
"""
