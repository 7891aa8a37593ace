"""Steelyard: a load balancer for AI inference that weighs every request before it places it."""

__version__ = "0.1.0"
