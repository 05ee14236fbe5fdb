"""Parses typed storage options, ``NAME=VALUE``, and opens the run root with them.

The value becomes a text, a boolean, a number or a duration: by the option's name if that is known, else by the form of
the value. Sends nothing. Any thread may call it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from ckptkit.cli.durations import duration_of, has_unit
from ckptkit.cli.errors import WrongUsageError
from ckptkit.storage import Storage, open_storage
from ckptkit.storage.url import for_a_person

_TEXTS = {
    "key",
    "secret",
    "token",
    "endpoint_url",
    "profile",
    "username",
    "password",
}  # a text even if it has only digits
_DURATIONS = {
    "request_timeout",
    "retry_for",
    "answer_within",
    "settle",
}  # not the options of fsspec's file systems, which take seconds
_COUNTS = {"default_block_size", "max_concurrency"}
_SWITCHES = {"anon", "use_ssl"}
_NOT_HERE = {"credentials", "client_kwargs", "config_kwargs", "s3_additional_kwargs"}

_SWITCH = {"true": True, "false": False}
_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")  # "007" is a text
_FLOAT = re.compile(r"-?[0-9]+\.[0-9]+(e-?[0-9]+)?")


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
    for one in given or ():
        name, equals, value = one.partition("=")
        if not name or not equals:
            raise WrongUsageError(f"{flag} takes NAME=VALUE, got {one!r}")
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
        duration = duration_of(text)
        if duration is None:
            raise ValueError(f"expected a duration such as 90, 90s, 5m or 1.5h, got {text!r}")
        return duration
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
    duration = duration_of(text) if has_unit(text) else None
    return text if duration is None else duration
