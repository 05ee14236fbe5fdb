"""What the options of `ckptkit.CheckpointManager` may be, and refusing what they may not be.

Pure functions, any thread.
"""

from __future__ import annotations

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
            raise ValueError(f"{option} must be a policy such as SaveEvery or KeepLatest, got {value!r}")


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
