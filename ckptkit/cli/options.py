"""Declares what several commands take, so that its name and help are the same, and opens the roots that were typed.

The value of ``NAME=VALUE`` becomes a text, a boolean, a number or a duration: by the option's name if that is known,
else by the form of the value. Completion reads only local roots, and offers nothing if it finds none.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from ckptkit.cli.errors import WrongUsageError, in_options
from ckptkit.errors import StorageError
from ckptkit.format.layout import CHECKPOINTS, COMMIT, CheckpointName
from ckptkit.storage import Storage, open_storage
from ckptkit.storage.url import is_bucket

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

_MOST_COMPLETED = 200

# Of a bucket that has not answered yet, while a person waits.
_ANSWER_WITHIN = timedelta(seconds=6)
_CONNECT_SECONDS = 5
_SILENCE_SECONDS = 9


def complete_checkpoint(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of the committed checkpoints of the typed ROOT, newest first."""
    # Before the value of an option, click has not assigned the arguments yet: the root is the first of them.
    root = ctx.params.get("root") or ctx.params.get("source") or next(iter(ctx.args), None)
    if not isinstance(root, str) or ("://" in root and not root.startswith("file://")):
        return []
    folder = Path(root.removeprefix("file://"), CHECKPOINTS)
    try:
        names = sorted(filter(None, map(CheckpointName.parse, os.listdir(folder))), reverse=True)
    except OSError:
        return []
    committed = (str(name) for name in names if (folder / str(name) / COMMIT).exists())
    return [name for name in committed if name.startswith(incomplete)][:_MOST_COMPLETED]


def storage_option(name: str, help_text: str) -> Any:
    """Return the declaration of an option ``NAME=VALUE``."""
    return typer.Option(name, metavar="NAME=VALUE", help=f"{help_text}; repeatable.")


Root = Annotated[str, typer.Argument(help="The run root: a path or a URL (s3://, obs://).")]
Command = Annotated[list[str] | None, typer.Argument(help="The command that trains, after two dashes.")]
CHECKPOINT_HELP = "A name that ckptkit ls shows or its beginning, a step, latest, or best:METRIC:max|min."
Checkpoint = Annotated[str, typer.Argument(help=CHECKPOINT_HELP, autocompletion=complete_checkpoint)]
Options = Annotated[
    list[str] | None, storage_option("--option", "Option of the storage, such as endpoint_url=https://...")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
Junit = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Also write the result as a JUnit XML file, for a CI system.")
]


def open_root(
    root: str, typed: Iterable[str] | None = None, *, flag: str = "--option", writes: bool = False
) -> Storage:
    """Open a run root, with a short time limit for the endpoint's first answer; raise WrongUsageError if it is invalid.

    ``typed`` are the options of its storage, each ``NAME=VALUE``, and ``flag`` is what the user types before each, for
    messages. ``writes`` says whether the command will write there.
    """
    options = parse_options(typed, flag=flag)
    try:
        return open_storage(root, for_a_person(root, options, writes=writes))
    except TypeError as error:  # from an fsspec file system, or for an option that is in no table here
        raise WrongUsageError(f"{flag}: {root} does not take these: {error}") from error
    except StorageError as error:
        raise StorageError(in_options(str(error), flag)) from error
    except ValueError as error:
        raise WrongUsageError(str(error)) from error


def for_a_person(root: str, storage_options: Mapping[str, Any], *, writes: bool = False) -> dict[str, Any]:
    """Return ``storage_options`` for a person who waits: gives up an unreachable endpoint after about 10 s.

    Options that the caller set stay. A storage that has answered once gets the usual timeouts. With ``writes``, a store
    may be silent for longer, so the read timeout stays.
    """
    options = dict(storage_options)
    if not is_bucket(root):
        return options
    silence = {} if writes or "request_timeout" in options else {"read_timeout": _SILENCE_SECONDS}
    own = options.get("config_kwargs") or {}
    options["config_kwargs"] = {"connect_timeout": _CONNECT_SECONDS, **silence, **own}
    if "retry_for" not in options:
        options.setdefault("answer_within", _ANSWER_WITHIN)
    return options


def parse_options(typed: Iterable[str] | None, *, flag: str = "--option") -> dict[str, Any]:
    """Return the values by name; the arguments are those of `open_root`."""
    options = {}
    for option in typed or ():
        name, equals, value = option.partition("=")
        if not name or not equals:
            raise WrongUsageError(f"{flag} takes NAME=VALUE, got {option!r}")
        try:
            options[name] = _value(name, value)
        except (ValueError, OverflowError) as error:
            raise WrongUsageError(f"{flag} {name}: {error}") from error
    return options


def _value(name: str, text: str) -> str | bool | int | float | timedelta:
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
    """Return the duration that was given for ``flag``, in seconds where it has no unit."""
    try:
        duration = _duration(text)
    except (ValueError, OverflowError):
        duration = timedelta(0)
    if duration <= timedelta(0):
        raise WrongUsageError(f"{flag}: expected a duration such as 90, 90s, 5m or 1.5h, got {text!r}")
    return duration
