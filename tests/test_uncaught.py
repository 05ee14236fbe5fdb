"""What a program's end looks like: the errors of ckptkit in a few lines, every other one as Python has it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import ckptkit as ck
from ckptkit.core.uncaught import lines_of

SCRIPT = """
import ckptkit as ck
from ckptkit.core.uncaught import show_errors_briefly

{before}
show_errors_briefly()


def train():
    {raises}


train()
"""


def run(folder: Path, raises: str, *, before: str = "", options: tuple[str, ...] = (), **environment: str) -> list[str]:
    """What the script wrote to stderr; its exit code is 1, whatever it raised."""
    (folder / "train.py").write_text(SCRIPT.format(before=before, raises=raises))
    done = subprocess.run(
        [sys.executable, *options, "train.py"],
        cwd=folder,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done
    return done.stderr.splitlines()


def test_error_shows_line_name_and_message(tmp_path):
    assert run(tmp_path, 'raise ck.ResumeError("pass initial_epoch=2")') == [
        "train.py:10: ckptkit.ResumeError: pass initial_epoch=2",
        "CKPTKIT_DEBUG=1 shows the traceback",
    ]


def test_error_names_line_of_script_not_package(tmp_path):
    first, _ = run(tmp_path, 'ck.CheckpointManager("s3:/bucket/run")')
    assert first.startswith("train.py:10: ckptkit.StorageError: s3:/bucket/run has one slash")


def test_error_names_user_module_without_script_line(tmp_path):
    """A module of the user's is named where no line of the script had a part."""
    folder = tmp_path / "a folder"
    folder.mkdir()
    (folder / "job.py").write_text('def go():\n    raise ck.ResumeError("no")\n\n\nimport ckptkit as ck\n')
    started = 'import sys\nsys.argv = ["train.py"]\ndel sys.modules["__main__"].__file__\nfrom job import go'
    assert run(folder, "go()", before=started)[0] == "job.py:2: ckptkit.ResumeError: no"


def test_error_in_user_module_names_line_of_script(tmp_path):
    (tmp_path / "job.py").write_text('import ckptkit as ck\n\n\ndef go():\n    raise ck.ResumeError("no")\n')
    assert run(tmp_path, "go()", before="from job import go")[0] == "train.py:10: ckptkit.ResumeError: no"


def test_error_without_file_names_no_line():
    """As of ``python -c``."""
    with pytest.raises(ck.ResumeError) as raised:
        exec(compile('raise ck.ResumeError("no")', "<string>", "exec"), {"ck": ck})  # noqa: S102
    assert lines_of(raised.value, raised.tb.tb_next)[0] == "ckptkit.ResumeError: no"


def test_a_long_message_is_cut_and_says_so(tmp_path):
    lines = run(tmp_path, 'raise ck.StateMismatchError("header:" + "".join(f"\\n  leaf {n}" for n in range(1000)))')
    assert lines == [
        "train.py:10: ckptkit.StateMismatchError: header:",
        "  leaf 0",
        "  leaf 1",
        "and 998 more lines like these; CKPTKIT_DEBUG=1 shows them and the traceback",
    ]


def test_cause_missing_from_message_is_one_line(tmp_path):
    *_, last = run(tmp_path, 'raise ck.StorageError("could not read") from KeyError("a\\nb")')
    assert last == "caused by KeyError: 'a\\nb'; CKPTKIT_DEBUG=1 shows the traceback"


@pytest.mark.parametrize(("raises", "told"), [("", "caused by KeyError: 'a'; "), (" from None", "")])
def test_context_is_told_unless_it_was_cut(raises, told):
    code = f"try:\n    {{}}['a']\nexcept KeyError:\n    raise ck.ResumeError('no'){raises}"
    with pytest.raises(ck.ResumeError) as raised:
        exec(code, {"ck": ck})  # noqa: S102
    assert lines_of(raised.value, raised.tb)[-1] == f"{told}CKPTKIT_DEBUG=1 shows the traceback"


def test_cause_in_message_is_not_repeated(tmp_path):
    raises = (
        'raise ck.StorageError("no room: No space left on device.") from OSError(28, "No space left on device", "f")'
    )
    assert run(tmp_path, raises)[1:] == ["CKPTKIT_DEBUG=1 shows the traceback"]


@pytest.mark.parametrize(
    ("raises", "before", "environment"),
    [
        ('raise ValueError("mine")', "", {}),
        ('raise ck.ResumeError("mine")', "", {"CKPTKIT_DEBUG": "1"}),
        ('raise ck.ResumeError("mine")', "import sys\nsys.ps1 = '>>> '", {}),
    ],
)
def test_the_traceback_stays(tmp_path, raises, before, environment):
    lines = run(tmp_path, raises, before=before, **environment)
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1].endswith("Error: mine")
    assert not any("CKPTKIT_DEBUG" in line for line in lines)


def test_a_hook_of_somebody_else_stays(tmp_path):
    before = "import sys\nsys.excepthook = lambda *what: print('theirs', file=sys.stderr)"
    assert run(tmp_path, 'raise ck.ResumeError("mine")', before=before) == ["theirs"]


def test_empty_or_zero_ckptkit_debug_is_off(tmp_path):
    for word in ("", "0"):
        assert len(run(tmp_path, 'raise ck.ResumeError("mine")', CKPTKIT_DEBUG=word)) == 2
