"""All jobs."""

from exactness.jobs.job import JOBS
from exactness.jobs.kinds import (
    callbacks,
    calls,
    cells,
    data,
    loops,
    losses,
    networks,
    observers,
    optimizers,
    precision,
    randomness,
    sources,
    stages,
    stateful,
    trainers,
    unread,
)
from exactness.jobs.kinds.own_loops import choices, containers, libraries, operators, passes, variables

__all__ = [
    "JOBS",
    "callbacks",
    "calls",
    "cells",
    "choices",
    "containers",
    "data",
    "libraries",
    "loops",
    "losses",
    "networks",
    "observers",
    "operators",
    "optimizers",
    "passes",
    "precision",
    "randomness",
    "sources",
    "stages",
    "stateful",
    "trainers",
    "unread",
    "variables",
]
