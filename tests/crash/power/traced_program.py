"""Everything that changes a disk, once, on a recorded one: ``python -m crash.power.traced_program FOLDER CALLS``.

Below ``FOLDER``: two lives, one with a mirror, a copy, a prune and two exports. What the recorder saw goes
to the file ``CALLS`` as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from support.disk import Disk

from ckptkit.storage import local

from .power_stories import OLD, Copying, Exporting, Mirroring, Pruning, Training

BEGIN = "begin"  # the last folder that is made before the recorder


def main(folder: Path, calls: Path) -> None:
    """Run it all."""
    local.LARGE_BYTES = 64
    beside = folder.parent / "beside"
    stories = [Training(), Mirroring(), Copying(beside / "c"), Pruning(beside / "p")]
    stories += [Exporting(beside / "new", None), Exporting(beside / "replaced", OLD)]
    for number, story in enumerate(stories):
        story.begin(folder / f"{number}")
    (folder / BEGIN).mkdir()
    with Disk(folder) as disk:
        for number, story in enumerate(stories):
            for _ in range(2):
                story.act(disk, folder / f"{number}")
    calls.write_text(json.dumps([[call.operation, call.keys[0]] for call in disk.calls]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
