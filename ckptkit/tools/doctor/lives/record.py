"""Writes and reads the record of a life's calls.

Guarantees: at most `MAX_RECORD_BYTES` are written, the first ones; lines of several threads and processes do not mix,
and those of worker processes come in any order. An incomplete last line is left out. Any thread.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from ckptkit.manager.hooks import Recorded
from ckptkit.tools.doctor.lives.trace import line_of

MAX_RECORD_BYTES = 1 << 27


class Record:
    """Appends events to a file.

    Args:
        path: A file in an existing folder.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def write(self, event: Recorded) -> None:
        """Append ``event``, unless the file is full."""
        line = line_of(event, exclude_defaults=True)
        if os.fstat(self._file).st_size + len(line) <= MAX_RECORD_BYTES:
            os.write(self._file, line)  # one call, so that lines do not mix


def read_record(path: Path) -> Iterator[Recorded]:
    """Yield the events of a record in order; an incomplete last line is left out."""
    if not path.exists():
        return
    with path.open("rb") as lines:
        for line in lines:
            if line.endswith(b"\n"):
                yield Recorded.model_validate(json.loads(line))
