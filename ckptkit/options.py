"""What the options of `ckptkit.CheckpointManager` may be, and refusing what they may not be.

Pure functions, any thread.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Literal, TypeAlias, get_args

from ckptkit.policies import KeepPolicy, SavePolicy

ERROR_BUDGET = 3
MidCycle: TypeAlias = Literal["exact", "align", "rewind"]
OnSaveError: TypeAlias = Literal["warn", "raise"]
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
    *, when_busy: WhenBusy, on_save_error: OnSaveError, mid_cycle: MidCycle, window: WindowUse
) -> None:
    """Raise ValueError unless each is one of its choices."""
    for option, value, choices in (
        ("when_busy", when_busy, WhenBusy),
        ("on_save_error", on_save_error, OnSaveError),
        ("mid_cycle", mid_cycle, MidCycle),
        ("window", window, WindowUse),
    ):
        *others, last = get_args(choices)
        if value not in (*others, last):
            raise ValueError(f"{option} must be {', '.join(map(repr, others))} or {last!r}, got {value!r}")


def refuse_no_duration(option: str, value: timedelta) -> None:
    """Raise ValueError unless ``value`` is a duration above zero."""
    if not isinstance(value, timedelta) or value <= timedelta():
        raise ValueError(f"{option} must be a positive timedelta, got {value!r}: write {option}=timedelta(minutes=5)")
