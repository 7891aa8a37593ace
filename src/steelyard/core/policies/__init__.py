"""Policies: how one node is picked among candidates that may all serve. One file a policy, registered by name.

A policy only picks. It reserves nothing, waits for nothing and keeps no counters of its own about nodes: those are
on the Node, kept by the Ledger, whatever policy is in force.

The loops over candidates repeat the test for a free slot and free memory instead of calling it: a call would be half
of what a decision costs.
"""

from __future__ import annotations

from steelyard.core.policies.consistent_hash import ConsistentHash
from steelyard.core.policies.least_request import LeastRequest
from steelyard.core.policies.least_response_time import LeastResponseTime
from steelyard.core.policies.least_work import LeastWork
from steelyard.core.policies.peak_ewma import PeakEwma
from steelyard.core.policies.power_of_two import PowerOfTwo
from steelyard.core.policies.random import RandomChoice
from steelyard.core.policies.registry import Policy, create, names, register
from steelyard.core.policies.round_robin import RoundRobin
from steelyard.core.policies.weighted_round_robin import WeightedRoundRobin

__all__ = [
    "ConsistentHash",
    "LeastRequest",
    "LeastResponseTime",
    "LeastWork",
    "PeakEwma",
    "Policy",
    "PowerOfTwo",
    "RandomChoice",
    "RoundRobin",
    "WeightedRoundRobin",
    "create",
    "names",
    "register",
]
