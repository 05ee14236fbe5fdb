"""The protocol in a checker's language: every interleaving of a few processes. docs/protocol.md says what it covers."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

MODELS = Path(__file__).with_name("protocol")
PAGE = Path(__file__).parents[2] / "docs/protocol.md"

HOLDS = [
    "run STARTS=2 LATE_DELETE",
    "run STARTS=3",
    "run FORGETS_VOIDS",
    "run BEGUN_ANEW",
    "run AWAY",
    "run AWAY ONLY_ONE_ATTEMPT WITHOUT_I3",
    "mirror",
    "mirror CHAIN",
    "durable",
    "lease",
    "lease STANDS_STILL FENCE_ALONE",
    "prune",
]

# What the protocol does, left out or done as it once was, and what is violated then.
NEEDED = {
    "run BEGUN_ANEW FENCE_BY_NUMBER": "lost",
    "run BEGUN_ANEW FENCE_BY_NUMBER WITHOUT_I1": "two_commit",
    "run BEGUN_ANEW COUNT_FOREIGN": "lost",
    "run AWAY FRESH_WHEN_AWAY": "began_afresh",
    "run AWAY ONLY_ONE_ATTEMPT WITHOUT_I3 SWEEP_FROZEN_BLINDLY": "lost",
    "run STARTS=2 EMPTY_ATTEMPT_COUNTS": "lost",
    "run STARTS=2 WITHOUT_VOID": "hollow",
    "run FORGETS_VOIDS FORGETS_VOIDS_AT_ONCE": "hollow",
    "run STARTS=2 WITHOUT_SECOND_LOOK": "lost",
    "run STARTS=2 REPORTED_AT_COMMIT": "lost",
    "mirror EMPTY_ATTEMPT_COUNTS": "lost",
    "mirror ROOM_WITHOUT_LOOK": "lost",
    "durable BELIEVES_THE_CACHE": "shard.there",
    "durable BELIEVES_A_COMMIT": "told",
    "durable BELIEVES_A_SECOND_FSYNC": "told",
    "durable REWRITES_WHAT_OTHERS_NEED": "other_commit",
    "lease STANDS_STILL FENCE_ALONE FENCE_BY_NUMBER": "both_go_on",
}

# What may happen that the protocol does not rule out, and what is violated then.
LIMITS = {
    "run BEGUN_ANEW REMOVED_WHILE_DELETING": "lost",
    "run BEGUN_ANEW LATE_DELETE": "lost",
    "run BEGUN_ANEW PUT_BACK_STALLS": "lost",
    "run AWAY ONLY_ONE_ATTEMPT": "began_afresh",
    "run STARTS=2 NOT_EVEN_OLD_ONES": "hollow",
    "mirror SAVES_ELSEWHERE=1": "lost",
    "lease STANDS_STILL": "replaced",
    "lease EACH_REQUEST_IN_TIME": "replaced",
    "prune LATE_DELETE": "commit",
}


@pytest.mark.skipif(
    shutil.which("spin") is None or shutil.which("gcc") is None,
    reason="spin or gcc is not installed; on Debian: apt-get install spin gcc libc6-dev",
)
@pytest.mark.extended  # a minute of searching in a text that no change of the product changes
@pytest.mark.parametrize(("check", "violated"), [*((check, None) for check in HOLDS), *NEEDED.items(), *LIMITS.items()])
def test_checker_finds_a_counterexample_where_there_is_one(check: str, violated: str | None, tmp_path: Path) -> None:
    model, *names = check.split()
    for command in (
        ["spin", *(f"-D{name}" for name in names), "-a", str(MODELS / f"{model}.pml")],
        ["gcc", "-O1", "-w", "-DSAFETY", "-DCOLLAPSE", "-o", "pan", "pan.c"],
        [str(tmp_path / "pan"), "-E", "-w22", "-m100000"],
    ):
        done = subprocess.run(command, cwd=tmp_path, text=True, capture_output=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    if violated is None:
        assert "errors: 0" in done.stdout, done.stdout
        assert "too small" not in done.stdout  # a search that was cut off proves nothing
    else:
        assert re.search(rf"assertion violated.*\b{re.escape(violated)}\b", done.stdout), done.stdout


def test_page_explains_every_check() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for check in (*HOLDS, *NEEDED, *LIMITS):
        assert f"`{check}`" in page, check
    switches = {
        name
        for model in MODELS.glob("*.pml")
        for name in re.findall(r"#if(?:n?def| defined\(| )\s*\(?(\w+)", model.read_text(encoding="utf-8"))
    }
    for name in switches - {"defined"}:
        assert name in page, name
