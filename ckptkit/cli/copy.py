"""``ckptkit copy``: a run, or one checkpoint of it, from a root to another; what is there already is compared.

The JSON is ``{"source": str, "target": str, ...}`` with the fields of `ckptkit.run.cargo.Copied`. The bar, and without
a terminal a line for each checkpoint, goes to stderr. Broken off at any moment, by Ctrl-C or otherwise, the same
command copies the rest. An option of a storage becomes text, a switch, a number or a duration: by its name where that
is known, else by its look.
"""

from __future__ import annotations

import dataclasses
import json
import re
import secrets
from collections.abc import Iterable
from datetime import datetime, timedelta, timezone

from rich.console import Console
from rich.filesize import decimal
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from ckptkit.errors import CkptKitError, StorageError
from ckptkit.run.cargo import Copied, CopyOutcome
from ckptkit.run.copy import CopyRequest, copy_run
from ckptkit.run.origin import without_credentials
from ckptkit.storage import Storage, open_storage

_RESUME = "Nothing that was copied is lost: the same command copies the rest."
_INTERRUPTED = 130  # as a shell reports SIGINT

_ENDS = {
    "copied": "copied",
    "present": "was there already, the same:",
    "pruned": "skipped, since the source removed it meanwhile:",
    "corrupt": "skipped, since it is corrupt:",
}

_TEXTS = {"key", "secret", "token", "endpoint_url", "profile", "username", "password"}  # also where all are digits
_DURATIONS = {"request_timeout", "retry_for", "settle"}  # not every timeout: file systems of fsspec take seconds
_COUNTS = {"default_block_size", "max_concurrency"}
_SWITCHES = {"anon", "use_ssl"}
_NOT_HERE = {"credentials", "client_kwargs", "config_kwargs", "s3_additional_kwargs"}

_SWITCH = {"true": True, "false": False}
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}
_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")  # "007" is a name
_FLOAT = re.compile(r"-?[0-9]+\.[0-9]+(e-?[0-9]+)?")
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smh]?)")


def run_copy(
    source: str,
    target: str,
    *,
    checkpoint: str | None,
    source_options: Iterable[str],
    target_options: Iterable[str],
    as_json: bool,
) -> int:
    """Copy and print what became of it; returns the exit code."""
    console = Console(stderr=True)
    request = CopyRequest(checkpoint, lambda: datetime.now(timezone.utc), lambda: secrets.token_hex(16))
    begun = False
    try:
        there = _open(source, "--source-option", source_options)
        here = _open(target, "--target-option", target_options)
        begun = True
        with CopyBar(console) as bar:
            copied = copy_run(there, here, request, bar)
    except StorageError as error:
        _complain(console, f"{error}{' ' + _RESUME if begun else ''}")
        return 3
    except CkptKitError as error:
        _complain(console, str(error))
        return 1
    except ValueError as error:
        _complain(console, str(error))
        return 2
    except KeyboardInterrupt:
        _complain(console, f"interrupted before the copy had ended. {_RESUME}")
        return _INTERRUPTED
    if as_json:
        urls = {"source": without_credentials(there.url), "target": without_credentials(here.url)}
        print(json.dumps({**urls, **dataclasses.asdict(copied)}))
    else:
        _print_summary(without_credentials(here.url), copied)
    for name, why in copied.corrupt.items():
        _complain(console, f"not copied: {name}: {why}")
    return 1 if copied.corrupt else 0


class CopyBar:
    """Shows how a copy goes on; a `ckptkit.run.cargo.CopyWatch` and a context manager.

    Args:
        console: Where; without a terminal, a line for each checkpoint.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
        )
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("comparing", total=None)
        self._ended = self._planned = 0

    def __enter__(self) -> CopyBar:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def plan(self, checkpoints: int, size_bytes: int) -> None:
        """As in `ckptkit.run.cargo.CopyWatch`."""
        self._planned = checkpoints
        self._bar.update(self._task, total=size_bytes, description=self._describe())

    def advance(self, size_bytes: int) -> None:
        """As in `ckptkit.run.cargo.CopyWatch`."""
        self._bar.advance(self._task, size_bytes)

    def end(self, name: str, outcome: CopyOutcome) -> None:
        """As in `ckptkit.run.cargo.CopyWatch`."""
        self._ended += outcome in ("copied", "present")
        self._bar.update(self._task, description=self._describe())
        if not self._console.is_terminal:
            at = f" ({self._describe()})" if outcome in ("copied", "present") else ""
            _print(self._console, f"{_ENDS[outcome]} {name}{at}")

    def _describe(self) -> str:
        return f"{self._ended} of {self._planned} checkpoints"


def _open(root: str, option: str, given: Iterable[str]) -> Storage:
    options = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not name or not equals:
            raise ValueError(f"{option} takes NAME=VALUE, got {one!r}")
        try:
            options[name] = _value(name, value)
        except (ValueError, OverflowError) as error:
            raise ValueError(f"{option} {name}: {error}") from error
    try:
        return open_storage(root, options)
    except TypeError as error:  # of a file system of fsspec, or of a name that is in no table here
        raise ValueError(f"{option}: {root} does not take these: {error}") from error


def _value(name: str, text: str) -> str | bool | int | float | timedelta:
    """What ``text`` says, given for the option ``name``."""
    if name in _NOT_HERE:
        raise ValueError("is no single value; a command line takes none of these")
    if name in _TEXTS:
        return text
    duration = _DURATION.fullmatch(text)
    if name in _DURATIONS:
        if duration is None:
            raise ValueError(f"a duration such as 90, 90s, 5m or 1.5h is wanted, not {text!r}")
        return _span(duration)
    if name in _SWITCHES or text.lower() in _SWITCH:
        if text.lower() not in _SWITCH:
            raise ValueError(f"true or false is wanted, not {text!r}")
        return _SWITCH[text.lower()]
    if name in _COUNTS or _INTEGER.fullmatch(text):
        if not _INTEGER.fullmatch(text):
            raise ValueError(f"an integer is wanted, not {text!r}")
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return _span(duration) if duration is not None and duration[2] else text


def _span(duration: re.Match[str]) -> timedelta:
    return timedelta(seconds=float(duration[1]) * _UNITS[duration[2]])


def _print_summary(url: str, copied: Copied) -> None:
    console = Console()
    total = len(copied.copied) + len(copied.present) + len(copied.kept)
    _print(
        console,
        f"{url}: {total} checkpoints, {len(copied.copied)} of them copied now "
        f"({decimal(copied.copied_bytes)}; {decimal(copied.found_bytes)} were there and compared)",
    )
    if copied.checkpoint is not None:
        _print(console, f"a run of its own that goes on from {copied.checkpoint}")
    for name in copied.kept:
        _print(console, f"kept, though the source has it no more: {name}")
    for name in copied.pruned:
        _print(console, f"{_ENDS['pruned']} {name}")


def _print(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _complain(console: Console, message: str) -> None:
    console.print(message, style="red", markup=False, highlight=False, soft_wrap=True)
