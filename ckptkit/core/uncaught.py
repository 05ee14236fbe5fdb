"""How an error of ckptkit looks that ends a program: its message and the line of the user's script, no traceback.

The frames of MindSpore and of this package between the two hide what the message says. Guarantees: at most four lines,
the rest of a long message left out; only errors of `ckptkit.errors` look different, every other one is left to Python;
the exit code stays 1; ``CKPTKIT_DEBUG=1`` brings everything back. Not in IPython, in an interactive Python, where
somebody else has set ``sys.excepthook``, or for what ends another thread than the main one. Any thread.
"""

from __future__ import annotations

import os
import site
import sys
import sysconfig
import traceback
from pathlib import Path
from types import ModuleType, TracebackType

from ckptkit.errors import CkptKitError
from ckptkit.scrubber import scrub_error

_HERE = Path(__file__).parents[1]
_HINT = "CKPTKIT_DEBUG=1 shows the traceback"
_MOST_LINES = 3  # of a message; one that lists what differs may have a thousand


def show_errors_briefly() -> None:
    """Let uncaught errors of ckptkit end the program with a few lines on stderr."""
    if sys.excepthook is sys.__excepthook__ and not _is_interactive():
        sys.excepthook = _show


def wants_details() -> bool:
    """Whether the user has set ``CKPTKIT_DEBUG``."""
    return os.environ.get("CKPTKIT_DEBUG", "0") not in ("", "0")


def lines_of(error: CkptKitError, trace: TracebackType | None) -> list[str]:
    """What stderr says of ``error``: where, what, and its cause where the message leaves that out."""
    where = _line_of_user(trace)
    message = f"{_name_of(type(error))}: {error}"
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    last = _HINT
    if cause is not None and not _repeats(str(error), str(cause)):
        first, *_ = str(cause).splitlines() or [""]
        last = f"caused by {_name_of(type(cause))}: {first[:200]}; {_HINT}"
    lines = f"{where}{message}".splitlines()
    left_out = len(lines) - _MOST_LINES
    if left_out > 0:
        last = last.replace(
            _HINT, f"and {left_out} more lines like these; CKPTKIT_DEBUG=1 shows them and the traceback"
        )
    return [*lines[:_MOST_LINES], last]


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if isinstance(error, CkptKitError):
        scrub_error(error)
    if not isinstance(error, CkptKitError) or wants_details() or sys.stderr is None:
        sys.__excepthook__(kind, error, trace)
        return
    sys.stderr.write("\n".join(lines_of(error, trace)) + "\n")
    sys.stderr.flush()


def _is_interactive() -> bool:
    in_ipython = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)() is not None
    return in_ipython or hasattr(sys, "ps1") or bool(sys.flags.interactive)


def _repeats(message: str, cause: str) -> bool:
    """Whether ``message`` already says what ``cause`` does; an OSError's text has a number in front of its words."""
    return all(one.strip() in message for one in cause.rpartition("] ")[2].partition(": '")[0].splitlines())


def _name_of(kind: type[BaseException]) -> str:
    package = kind.__module__.partition(".")[0]
    if kind.__module__ == "builtins":
        return kind.__qualname__
    return f"{package if package == 'ckptkit' else kind.__module__}.{kind.__qualname__}"


def _line_of_user(trace: TracebackType | None) -> str:
    """The last line of the main script that was on its way, or else the last one of code that nobody installed."""
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(trace)]
    main = getattr(sys.modules.get("__main__", ModuleType("")), "__file__", None)
    script = [one for one in frames if main is not None and os.path.abspath(one[0]) == os.path.abspath(main)]
    users = script or [one for one in frames if _is_users(one[0])]
    if not users:
        return ""
    name, line = users[-1]
    return f"{min(name, os.path.relpath(name), key=len)}:{line}: "


def _is_users(name: str) -> bool:
    if name.startswith("<"):  # such as <frozen runpy>, <string>
        return False
    installed: list[str | Path | None] = [
        _HERE,
        *site.getsitepackages(),
        site.getusersitepackages(),
        *map(sysconfig.get_path, ("stdlib", "purelib")),
    ]
    path = Path(name).resolve()
    return not any(path.is_relative_to(Path(one).resolve()) for one in installed if one is not None)
