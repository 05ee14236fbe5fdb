"""All jobs."""

from jobs import (
    callbacks,
    calls,
    data,
    loops,
    losses,
    networks,
    optimizers,
    precision,
    randomness,
    sources,
    stages,
    stateful,
    trainers,
    variables,
)
from jobs.job import JOBS

__all__ = [
    "JOBS",
    "callbacks",
    "calls",
    "data",
    "loops",
    "losses",
    "networks",
    "optimizers",
    "precision",
    "randomness",
    "sources",
    "stages",
    "stateful",
    "trainers",
    "variables",
]
