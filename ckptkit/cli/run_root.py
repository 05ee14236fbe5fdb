"""Opens the run root of a command: parses its typed options, and tells a mistyped root from a run without a commit.

The value of ``NAME=VALUE`` becomes a text, a boolean, a number or a duration: by the option's name if that is known,
else by the form of the value. Any thread may call it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from ckptkit.cli.errors import WrongUsageError
from ckptkit.errors import CheckpointNotFoundError
from ckptkit.format.layout import ATTEMPTS, CHECKPOINTS, EVENTS, FROZEN, RUN
from ckptkit.storage import LocalStorage, Storage, open_storage
from ckptkit.storage.lease import LEASE, PROBE
from ckptkit.storage.url import for_a_person

_TEXTS = {"key", "secret", "token", "endpoint_url", "profile", "username", "password"}  # even if only digits
_DURATIONS = {"request_timeout", "retry_for", "answer_within", "settle"}  # fsspec's own options take seconds
_COUNTS = {"default_block_size", "max_concurrency"}
_SWITCHES = {"anon", "use_ssl"}
_NOT_HERE = {"credentials", "client_kwargs", "config_kwargs", "s3_additional_kwargs"}

_SWITCH = {"true": True, "false": False}
_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")  # "007" is a text
_FLOAT = re.compile(r"-?[0-9]+\.[0-9]+(e-?[0-9]+)?")
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smh]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}

_OF_A_RUN = {RUN, ATTEMPTS, CHECKPOINTS, FROZEN, EVENTS, LEASE, PROBE}
_MOST_LISTED = 30  # each folder costs a request
_MOST_NAMED = 3


def open_root(
    root: str, given: Iterable[str] | None = None, *, flag: str = "--option", writes: bool = False
) -> Storage:
    """Open a run root for a command, with a short time limit for the endpoint's first answer.

    Args:
        root: A path or a URL.
        given: Options, each ``NAME=VALUE``.
        flag: The flag that gives the options, for messages.
        writes: Whether the command will write there.

    Raises:
        WrongUsageError: If the root or an option is invalid.
        StorageError: As in `open_storage`.
    """
    options = parse_options(given, flag=flag)
    try:
        return open_storage(root, for_a_person(root, options, writes=writes))
    except TypeError as error:  # from an fsspec file system, or for an option that is in no table here
        raise WrongUsageError(f"{flag}: {root} does not take these: {error}") from error
    except ValueError as error:
        raise WrongUsageError(str(error)) from error


def parse_options(given: Iterable[str] | None, *, flag: str = "--option") -> dict[str, Any]:
    """Return the options by name; the arguments are those of `open_root`.

    Raises:
        WrongUsageError: If one is invalid.
    """
    options = {}
    for option in given or ():
        name, equals, value = option.partition("=")
        if not name or not equals:
            raise WrongUsageError(f"{flag} takes NAME=VALUE, got {option!r}")
        try:
            options[name] = _value(name, value)
        except (ValueError, OverflowError) as error:
            raise WrongUsageError(f"{flag} {name}: {error}") from error
    return options


def _value(name: str, text: str) -> str | bool | int | float | timedelta:
    """Convert ``text``, the value of the option ``name``; raises ValueError if it is invalid."""
    if name in _NOT_HERE:
        raise ValueError("is not a single value; the command line does not accept it")
    if name in _TEXTS:
        return text
    if name in _DURATIONS:
        return _duration(text)
    if name in _SWITCHES or text.lower() in _SWITCH:
        if text.lower() not in _SWITCH:
            raise ValueError(f"expected true or false, got {text!r}")
        return _SWITCH[text.lower()]
    if name in _COUNTS or _INTEGER.fullmatch(text):
        if not _INTEGER.fullmatch(text):
            raise ValueError(f"expected an integer, got {text!r}")
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return _duration(text) if _DURATION.fullmatch(text) and text[-1] in "smh" else text


def _duration(text: str) -> timedelta:
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"expected a duration such as 90, 90s, 5m or 1.5h, got {text!r}")
    return timedelta(seconds=float(match[1]) * _SECONDS[match[2]])


def positive_duration(flag: str, text: str) -> timedelta:
    """Return the duration that was given for ``flag``, in seconds where it has no unit.

    Raises:
        WrongUsageError: If ``text`` is no duration, or zero.
    """
    try:
        duration = _duration(text)
    except (ValueError, OverflowError):
        duration = timedelta(0)
    if duration <= timedelta(0):
        raise WrongUsageError(f"{flag}: expected a duration such as 90, 90s, 5m or 1.5h, got {text!r}")
    return duration


def refuse_no_run(storage: Storage) -> None:
    """Raise if ``storage`` cannot be a run; call it if no checkpoint was found.

    A run without a commit and an empty root are fine. A remote root without a file counts as empty, because object
    stores have no folders that could be missing.

    Raises:
        CheckpointNotFoundError: If the folder does not exist, or holds other files; names the runs directly below it.
        StorageError: If the storage failed.
    """
    why = _why(storage)
    if why is not None:
        raise CheckpointNotFoundError(why)


def _why(storage: Storage) -> str | None:
    if isinstance(storage, LocalStorage) and not os.path.isdir(storage.url):
        return f"{storage.url} does not exist, so there is no run. Check for a typo, or for a disk that is not mounted"
    top = storage.list("")
    names = {name for name in (*top.folders, *top.files) if not name.startswith(".")}
    if not names or names & _OF_A_RUN:
        return None
    below = [name for name in sorted(top.folders)[:_MOST_LISTED] if RUN in storage.list(name).files][:_MOST_NAMED]
    if below:
        roots = ", ".join(f"{storage.url.rstrip('/')}/{name}" for name in below)
        return f"{storage.url} is not a run, but there are runs below it. Give the root of one, such as {roots}"
    return f"{storage.url} holds files ({', '.join(sorted(names)[:_MOST_NAMED])}, ...), but no run. Check for a typo"
