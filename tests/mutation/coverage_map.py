"""Which tests run which lines, and how long they take, as one run of the suite recorded it."""

import json
import sqlite3
from collections import defaultdict
from pathlib import Path

from coverage.numbits import numbits_to_nums


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
