"""Shows an uncaught ckptkit error as its message and the line of the user's script, without a traceback.

The frames of MindSpore and of this package would hide the message. Guarantees: at most four lines; the rest of a long
message is left out. Only errors of `ckptkit.errors` change; Python shows every other error. The exit code stays 1.
``CKPTKIT_DEBUG=1`` restores the full output. Does not apply in IPython, in an interactive Python, where other code has
set ``sys.excepthook``, or to errors in threads other than the main one. Any thread.
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
_MOST_LINES = 3  # of a message; one that lists differences may have a thousand


def show_errors_briefly() -> None:
    """Show uncaught ckptkit errors with a few lines on stderr."""
    if sys.excepthook is sys.__excepthook__ and not _is_interactive():
        sys.excepthook = _show


def wants_details() -> bool:
    """Return whether the user has set ``CKPTKIT_DEBUG``."""
    return os.environ.get("CKPTKIT_DEBUG", "0") not in ("", "0")


def lines_of(error: CkptKitError, trace: TracebackType | None) -> list[str]:
    """Return the lines for stderr: where, what, and the cause if the message leaves it out."""
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
    """Return whether ``message`` already contains ``cause``, without the number at the front of an OSError's text."""
    return all(one.strip() in message for one in cause.rpartition("] ")[2].partition(": '")[0].splitlines())


def _name_of(kind: type[BaseException]) -> str:
    package = kind.__module__.partition(".")[0]
    if kind.__module__ == "builtins":
        return kind.__qualname__
    return f"{package if package == 'ckptkit' else kind.__module__}.{kind.__qualname__}"


def _line_of_user(trace: TracebackType | None) -> str:
    """Return the last line of the main script in the traceback, or else of code that is not installed."""
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
