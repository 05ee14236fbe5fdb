"""All jobs."""

from exactness.jobs.job import JOBS
from exactness.jobs.kinds import (
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
