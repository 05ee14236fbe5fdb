"""Measures how many planted defects the suite finds; `docs/testing.md` says how to use it.

``python -m mutation map FOLDER`` records which test of the default suite runs which line. ``python -m mutation run
FOLDER --count 500 --seed 1`` draws mutants and lets the tests that run the changed line judge each, first those of the
default suite, then, where none noticed it, all others of the same files. It goes on where it was stopped. ``python -m
mutation table FOLDER`` prints the result.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import shutil
import sqlite3
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

from coverage.numbits import numbits_to_nums
from support.process import WarmServer

from mutation.sample import Mutant, draw, mutated

REPOSITORY = Path(__file__).parents[2]
CONFIGURATION = REPOSITORY / "tests/mutation/coveragerc"
SUITES = {"default": "not extended and not radosgw and not rclone and not browser", "full": "full"}
IMPORTED = ("mindspore.dataset", "mindspore.train", "pytest", "botocore.session")  # nothing of ckptkit, no plugin
OPTIONS = ("-n", "0", "-x", "-q", "-m", "", "-p", "no:cacheprovider", "--tb=no")
PASSES = "tests/unit/core/test_accumulation.py"  # where nothing is changed
QUIET = {"PYTHONDONTWRITEBYTECODE": "1", "GLOG_v": "3"}
STARTING_SECONDS = 60.0  # of pytest, MindSpore and a server, on a busy machine
SLOWER = 5.0  # a test that takes as many times longer than it did hangs

Verdict = Literal["killed", "hung", "survived", "not covered"]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m mutation", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in ("map", "run", "table"):
        verbs.add_parser(verb).add_argument("folder", type=Path)
    options = verbs.choices["run"]
    options.add_argument("--count", type=int, default=500)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--seconds", type=float, default=120.0, help="of tests for one change and suite")
    options.add_argument("--cases", type=int, default=4, help="of one test function for one change, at most")
    given = parser.parse_args()
    if given.verb == "map":
        record(given.folder)
    elif given.verb == "run":
        run(given)
    else:
        print(table(given.folder))


def record(folder: Path) -> None:
    """Run the default suite and record which test runs which line; one that the recording itself disturbs may fail."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "MUTATION_DATA": str(folder.resolve())}
    options = [f"--cov-config={CONFIGURATION}", "--cov=ckptkit", "--cov-context=test", "--cov-report="]
    kept = ["--store-durations", f"--durations-path={folder.resolve() / 'durations'}"]
    subprocess.run([sys.executable, "-m", "pytest", *options, *kept], cwd=REPOSITORY, env=environment, check=False)


def run(given: argparse.Namespace) -> None:
    """Judge every mutant of the sample that has not been judged yet."""
    folder: Path = given.folder
    collected = {suite: collect(marks) for suite, marks in SUITES.items()}
    lines = CoverageMap(folder, collected["full"])
    results = folder / f"results-{given.seed}.jsonl"
    judged = {one["name"] for one in read(results)}
    waiting = [one for one in draw(REPOSITORY, given.count, given.seed) if one.name not in judged]

    copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()
    for number in range(given.workers):
        copies.put(Copy(folder.resolve() / f"worker-{number}"))

    def work(mutant: Mutant) -> dict[str, object]:
        copy = copies.get()
        try:
            return judge(copy, mutant, lines, collected, given)
        finally:
            copies.put(copy)

    with ThreadPoolExecutor(given.workers) as pool, results.open("a", buffering=1) as file:
        for left, verdict in zip(reversed(range(len(waiting))), pool.map(work, waiting), strict=True):
            file.write(json.dumps(verdict) + "\n")
            print(f"{left:4d} left  {verdict['default']:11} {verdict['full']:11} {verdict['name']}", flush=True)


class CoverageMap:
    """Tests by line."""

    def __init__(self, folder: Path, collected: set[str]) -> None:
        self._seconds: dict[str, float] = json.loads((folder / "durations").read_text())
        self._tests: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        with sqlite3.connect(folder / "lines") as database:
            rows = database.execute(
                "SELECT path, context, numbits FROM line_bits"
                " JOIN file ON file.id = file_id JOIN context ON context.id = context_id"
            )
            for path, context, bits in rows:
                test = _test(context)
                if test in collected:
                    module = path[path.rindex("/ckptkit/") + 1 :]
                    for line in numbits_to_nums(bits):
                        self._tests[module][line].add(test)

    def seconds(self, test: str) -> float:
        """How long a test took; ten seconds if that is not known, as of those that the default suite leaves out."""
        return self._seconds.get(test, 10.0)

    def covering(self, path: str, first: int, last: int) -> set[str]:
        """The tests that run any of the lines; if none does, as at import, those that run any line of the module."""
        lines = self._tests[path]
        found = set().union(*(lines[line] for line in range(first, last + 1) if line in lines))
        return found or set().union(*lines.values())


def _test(context: str) -> str:
    """The test of a context: ``NODE|run`` from the test's own process, ``NODE (call)`` from one that it started."""
    node = context.removeprefix("|").removeprefix("none|")
    for phase in ("setup", "run", "teardown"):
        node = node.removesuffix(f"|{phase}")
    for phase in ("setup", "call", "teardown"):
        node = node.removesuffix(f" ({phase})")
    return node


class Copy:
    """A copy of the repository in which one mutant at a time is tried."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._server = WarmServer(IMPORTED)
        shutil.rmtree(folder, ignore_errors=True)
        command = ["git", "ls-files", "-z"]
        files = subprocess.run(command, cwd=REPOSITORY, capture_output=True, check=True, text=True)
        for name in filter(None, files.stdout.split("\0")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / name, folder / name)
        verdict, by = self._run([PASSES], 0)
        if verdict != "survived":
            raise RuntimeError(f"{by} fails without a mutant; {self.folder / 'said'} has its words")

    def try_tests(self, mutant: Mutant, tests: Sequence[str], seconds: float) -> tuple[Verdict, str]:
        """Run ``tests`` while the copy holds the mutant until one fails; returns which did."""
        if not tests:
            return "not covered", ""
        module = self.folder / mutant.path
        original = module.read_bytes()
        try:
            module.write_text(mutated(REPOSITORY, mutant), encoding="utf-8")
            return self._run(tests, seconds)
        finally:
            module.write_bytes(original)

    def _run(self, tests: Sequence[str], seconds: float) -> tuple[Verdict, str]:
        chosen = self.folder / "chosen-tests"
        chosen.write_text("\n".join(tests))
        said = self.folder / "said"
        request = {
            "arguments": ["-m", "pytest", f"@{chosen}", *OPTIONS],
            "folder": str(self.folder),
            "environment": {**os.environ, **QUIET, "PYTHONPATH": str(self.folder)},
            "out": str(said),
            "err": str(said.with_suffix(".err")),
            "timeout": STARTING_SECONDS + SLOWER * seconds,
            "session": True,  # so that what a mutant leaves behind ends with its tests
        }
        try:
            returncode = self._server.run(request)
        except subprocess.TimeoutExpired:
            return "hung", ""
        if returncode == 0:
            return "survived", ""
        lines = said.read_text(errors="replace").splitlines()
        failed = [line.split(" ", 1)[1] for line in lines if line.startswith(("FAILED ", "ERROR "))]
        return "killed", failed[0].split(" - ")[0] if failed else f"pytest ended with {returncode}"


def judge(
    copy: Copy, mutant: Mutant, lines: CoverageMap, collected: dict[str, set[str]], budget: argparse.Namespace
) -> dict[str, object]:
    """Let the default suite judge the mutant, and all other tests of the same files if it survived."""
    begun = time.monotonic()
    covering = lines.covering(mutant.path, *mutant.lines)
    found: dict[str, object] = {"name": mutant.name, "lines": mutant.lines, "diff": mutant.diff}
    chosen = choose(covering & collected["default"], lines, budget)
    found["default"], found["by"] = copy.try_tests(mutant, chosen, sum(map(lines.seconds, chosen)))
    found["tests"] = len(chosen)
    found["full"] = found["default"]
    if found["default"] in ("survived", "not covered"):
        files = {test.partition("::")[0] for test in covering}
        others = {test for test in collected["full"] if test.partition("::")[0] in files}
        rest = choose(others - set(chosen), lines, budget)
        verdict, by = copy.try_tests(mutant, rest, sum(map(lines.seconds, rest)))
        if verdict != "not covered":
            found["full"], found["by"] = verdict, by
        found["tests"] = len(chosen) + len(rest)
    found["seconds"] = round(time.monotonic() - begun, 1)
    return found


def choose(tests: Iterable[str], lines: CoverageMap, budget: argparse.Namespace) -> list[str]:
    """The quickest cases of each test function first, one of every function before the second of any."""
    functions = defaultdict(list)
    for test in sorted(tests, key=lambda one: (lines.seconds(one), one)):
        functions[test.partition("[")[0]].append(test)
    ranked = [(rank, lines.seconds(one), one) for cases in functions.values() for rank, one in enumerate(cases)]
    chosen, total = [], 0.0
    for rank, seconds, test in sorted(ranked):
        if rank < budget.cases and total + seconds <= budget.seconds:
            chosen.append(test)
            total += seconds
    return chosen


def collect(marks: str) -> set[str]:
    """The tests that pytest finds with these marks."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n", "0", "-m", marks]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, check=True, text=True)
    return {line for line in done.stdout.splitlines() if "::" in line}


def read(results: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []


def table(folder: Path) -> str:
    """The result by package, as a table of Markdown, and the survivors."""
    rows = [one for path in sorted(folder.glob("results-*.jsonl")) for one in read(path)]
    packages = defaultdict(list)
    for row in rows:
        packages[str(row["name"]).rpartition("/")[0]].append(row)
    lines = ["| package | mutants | default suite kills | full suite kills |", "|---|---:|---:|---:|"]
    for name, those in [*sorted(packages.items()), ("all", rows)]:
        killed = {suite: sum(row[suite] in ("killed", "hung") for row in those) for suite in SUITES}
        lines.append(f"| {name} | {len(those)} | {killed['default']} | {killed['full']} |")
    for row in rows:
        if row["default"] not in ("killed", "hung"):
            lines += [
                "",
                f"{row['name']} (default: {row['default']}, full: {row['full']} {row['by']})",
                str(row["diff"]),
            ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
