# forgotten-state: levels
"""The position of a generator function that gives a schedule."""

from base import train


def schedule():
    level = 0.1
    while True:
        yield level
        level = min(1.0, level * 1.2)


levels = schedule()
train(lambda x: x * levels.send(None))
