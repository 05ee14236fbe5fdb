"""A defect that somebody planted by hand, as `git diff` writes it."""

from __future__ import annotations

import os
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

_HUNK = re.compile(r"@@ -(\d+)")


@dataclass(frozen=True)
class Patch:
    """One defect."""

    file: Path

    @property
    def name(self) -> str:
        return self.file.stem

    @cached_property
    def lines(self) -> Mapping[str, Sequence[tuple[int, int]]]:
        """By module, spans of lines before the change that a test has to run: what goes, and what is around news."""
        found: dict[str, list[tuple[int, int]]] = defaultdict(list)
        module, at = "", 0
        for line in self.file.read_text(encoding="utf-8").splitlines():
            if line.startswith("--- "):
                module = line.removeprefix("--- a/")
            elif match := _HUNK.match(line):
                at = int(match[1])
            elif line.startswith("-"):
                found[module].append((at, at))
                at += 1
            elif line.startswith("+") and not line.startswith("+++ "):
                found[module].append((at - 1, at))
            elif line.startswith(" "):
                at += 1
        return found

    @contextmanager
    def planted(self, folder: Path) -> Iterator[None]:
        """Have the copy of the repository in ``folder`` hold the defect."""
        self._apply(folder)
        try:
            yield
        finally:
            self._apply(folder, "--reverse")

    def _apply(self, folder: Path, *options: str) -> None:
        # Inside a repository git would leave out what lies above the folder, without a word.
        environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.resolve().parent)}
        command = ["git", "apply", *options, str(self.file.resolve())]
        subprocess.run(command, cwd=folder, env=environment, check=True)
