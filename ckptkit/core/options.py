"""Defines and validates the options of `ckptkit.CheckpointManager`.

Pure functions, any thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Literal, TypeAlias, get_args

from ckptkit.core.policies import KeepPolicy, SavePolicy

ERROR_BUDGET = 3
MidCycle: TypeAlias = Literal["exact", "align", "rewind"]
OnSaveError: TypeAlias = Literal["warn", "raise"]
OnPreempt: TypeAlias = Literal["exit", "return", "off"]
PreemptWhen: TypeAlias = str | os.PathLike[str] | Callable[[], bool] | None
WhenBusy: TypeAlias = Literal["skip", "wait"]
WindowUse: TypeAlias = Literal["auto", "slice", "off"]


def refuse_wrong_policies(*, save: SavePolicy | None, keep: KeepPolicy | None, mirror_keep: KeepPolicy | None) -> None:
    """Raise ValueError unless each is a policy or None."""
    for option, value, verb in (("save", save, "due"), ("keep", keep, "keeps"), ("mirror_keep", mirror_keep, "keeps")):
        if value is not None and not hasattr(value, verb):
            example, usual = ("SaveEvery(optimizer_steps={})", 100) if verb == "due" else ("KeepLatest({})", 3)
            given: object = value
            number = given if isinstance(given, int) and given > 0 else usual
            raise ValueError(
                f"{option} must be a policy such as SaveEvery or KeepLatest, got {value!r}: write "
                f"{option}=ck.{example.format(number)}"
            )


def refuse_unknown_choices(
    *, when_busy: WhenBusy, on_save_error: OnSaveError, mid_cycle: MidCycle, window: WindowUse, on_preempt: OnPreempt
) -> None:
    """Raise ValueError unless each is one of its choices."""
    for option, value, choices in (
        ("when_busy", when_busy, WhenBusy),
        ("on_save_error", on_save_error, OnSaveError),
        ("mid_cycle", mid_cycle, MidCycle),
        ("window", window, WindowUse),
        ("on_preempt", on_preempt, OnPreempt),
    ):
        *others, last = get_args(choices)
        if value not in (*others, last):
            raise ValueError(f"{option} must be {', '.join(map(repr, others))} or {last!r}, got {value!r}")


def refuse_wrong_preemption(grace: timedelta, preempt_when: PreemptWhen) -> None:
    """Raise ValueError unless ``grace`` is positive and ``preempt_when`` is None, a path or a callable."""
    refuse_no_duration("grace", grace, usual="seconds=25")
    is_path = isinstance(preempt_when, str | os.PathLike) and bool(os.fspath(preempt_when))
    if not (preempt_when is None or is_path or callable(preempt_when)):
        raise ValueError(f"preempt_when must be the path of a file or a callable, got {preempt_when!r}")


def refuse_no_duration(option: str, value: timedelta, *, usual: str) -> None:
    """Raise ValueError unless ``value`` is a positive timedelta; ``usual`` is the example argument in the message."""
    if not isinstance(value, timedelta) or value <= timedelta():
        raise ValueError(f"{option} must be a positive timedelta, got {value!r}: write {option}=timedelta({usual})")
