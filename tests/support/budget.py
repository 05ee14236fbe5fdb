"""What the default suite costs: cases and seconds of user time by folder, and how many of both a folder may have.

A plugin of pytest prints the table at the end of a default run. ``python -m support.budget``, after a default run,
fails if a folder has more cases than its budget, or if the median of three runs takes more than 1.2 times its seconds;
it runs a folder that took more twice again. User time is that of the test's process and of all that it starts.
"""

import json
import os
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from support.process import forked_user_seconds

TESTS = Path(__file__).parents[1]
SLACK = 1.2
PROPERTY, KEPT = "user_seconds", "ckptkit/costs"

# Folder below `tests`: cases, and seconds of user time on two cores. Who adds a case finds one that may go.
BUDGET = {
    ".": (0, 0),  # what lies in none of the others, and is in no default run
    "crash": (138, 90),
    "docs": (124, 60),
    "exactness": (56, 85),
    "multirank": (51, 85),
    "unit": (474, 75),
    "unit/manager": (235, 50),
    "unit/mindspore": (1111, 390),
    "unit/storage": (412, 25),
    "unit/tools": (241, 95),
}


_BEGUN = pytest.StashKey[float]()  # user seconds as the test began


def folder_of(path: Path) -> str:
    """Return the folder of the budget that a file of tests belongs to: the deepest one."""
    parents = [parent.as_posix() for parent in path.relative_to(TESTS).parents]
    return next(parent for parent in parents if parent in BUDGET)


def _user_seconds() -> float:
    spent = os.times()
    return spent.user + spent.children_user + forked_user_seconds()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[object]:
    item.stash[_BEGUN] = _user_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[object]:
    report = yield
    if call.when == "teardown":
        report.user_properties.append((PROPERTY, _user_seconds() - item.stash[_BEGUN]))
    return report


class Costs:
    """Adds up what the tests of a run cost."""

    def __init__(self) -> None:
        self.cases: Counter[str] = Counter()
        self.seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == PROPERTY and report.when == "teardown":
                folder = folder_of(TESTS.parent / report.nodeid.partition("::")[0])
                self.cases[folder] += 1
                self.seconds[folder] += value

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
        is_default = "not extended" in config.option.markexpr and not getattr(config.option, "lf", False)
        if not self.cases or not is_default or getattr(config, "cache", None) is None:
            return
        config.cache.set(KEPT, {name: [self.cases[name], self.seconds[name]] for name in self.cases})
        if config.args_source == pytest.Config.ArgsSource.TESTPATHS:  # of the whole suite
            terminalreporter.section("cost of the default suite")
            terminalreporter.write_line(table(self.cases, self.seconds))


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Costs())


def table(cases: Mapping[str, int], seconds: Mapping[str, float]) -> str:
    rows = [(name, cases[name], BUDGET[name][0], seconds[name], BUDGET[name][1]) for name in sorted(cases)]
    rows.append(("all", *(sum(row[column] for row in rows) for column in range(1, 5))))
    return "\n".join(
        ["folder             cases  at most  user s  at most"]
        + [f"{name:18} {n:5,} {most:8,} {spent:7,.0f} {limit:8,}" for name, n, most, spent, limit in rows]
    )


def main() -> int:
    """Hold the last default run against the budget; a folder above its seconds runs twice more, for the median.

    A machine that is slow is so in all folders: seconds count relative to the middle folder's.
    """
    costs = {name: cost for name, cost in _kept().items() if BUDGET[name][1]}
    crowded = [name for name in costs if costs[name][0] > BUDGET[name][0]]
    allowed = SLACK * max(1.0, statistics.median(costs[name][1] / BUDGET[name][1] for name in costs))
    dear = [name for name in costs if costs[name][1] > allowed * BUDGET[name][1]]
    for name in dear[:]:
        seconds = [costs[name][1]]
        deeper = [f"--ignore={TESTS / other}" for other in BUDGET if other.startswith(f"{name}/")]
        for _ in range(2):  # a test that fails here has passed, or was run once more, before
            subprocess.run([sys.executable, "-m", "pytest", "-q", TESTS / name, *deeper], cwd=TESTS.parent, check=False)
            seconds.append(_kept()[name][1])
        if statistics.median(seconds) <= allowed * BUDGET[name][1]:
            dear.remove(name)
    for name in crowded:
        print(f"tests/{name} has {costs[name][0]} default cases, its budget is {BUDGET[name][0]}: take others away")
    for name in dear:
        print(f"tests/{name} takes more than {allowed:.2f} times its {BUDGET[name][1]} s of user time in three runs")
    return 1 if crowded or dear else 0


def _kept() -> dict[str, tuple[int, float]]:
    kept: dict[str, tuple[int, float]] = json.loads((TESTS.parent / ".pytest_cache/v" / KEPT).read_text())
    return kept


if __name__ == "__main__":
    sys.exit(main())
