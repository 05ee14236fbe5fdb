"""Defines the options that `ckptkit.CheckpointManager` and ``ckptkit.CheckpointCallback`` share, in groups.

Guarantees: a group is checked when it is made, and never changes. Relative paths refer to the folder that is current
then. Any thread.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any, Literal, TypeAlias, get_args

from ckptkit.core.placement import PlacementByName
from ckptkit.core.save_policy import SavePolicy
from ckptkit.core.save_report import SaveReport
from ckptkit.manager.heartbeat import boot_id
from ckptkit.run.keep_policy import KeepPolicy
from ckptkit.run.takeover import this_process
from ckptkit.storage import Storage, open_storage

ERROR_BUDGET = 3
MidCycle: TypeAlias = Literal["exact", "align", "rewind"]
OnError: TypeAlias = Literal["warn", "raise"]
AfterPreemption: TypeAlias = Literal["exit", "return", "off"]
PreemptWhen: TypeAlias = str | os.PathLike[str] | Callable[[], bool] | None
WhenBusy: TypeAlias = Literal["skip", "wait"]
WindowUse: TypeAlias = Literal["auto", "slice", "off"]


@dataclass(frozen=True, kw_only=True)
class Saving:
    """Says how saves are taken and reported.

    Attributes:
        when_busy: What happens to a due save while the previous one is still being written: ``"skip"`` it until the
            next multiple, or ``"wait"``.
        on_error: ``"warn"`` logs a failed save and tolerates up to two in a row; ``"raise"`` tolerates none. Losing the
            run to another process always raises.
        mid_cycle: What happens to a save that is due between two boundaries. ``"exact"`` stores the accumulators.
            ``"align"`` waits for the next boundary. ``"rewind"`` stores the start of the running cycle, whose
            micro-steps are repeated after a restore; refused where the forward pass changes parameters. A save that is
            not due by a policy always stores the state as it is.
        window: How to take the leaves that only an update changes. ``"auto"``: the writer reads them in place until the
            fence before the update; where looking at a tensor copies it, the training thread copies a slice after each
            micro-step instead. ``"slice"``: always by slices. ``"off"``: the save itself copies everything.
        buffer_bytes: Memory for what is copied after the save call; default a quarter of the state, up to one and a
            half times the state if the last save showed that the storage is slow and half of the free memory, divided
            by the ranks, is enough, and all of it where the root is remote. When it is full, the fence waits for the
            writer; on a remote root it gives up the save after two minutes without progress.
        on_save: Called with the `SaveReport` of every save, by the training thread, after the save; in a job of many
            ranks only in rank 0, which commits.
        events: Whether to record below ``events/`` what ``ckptkit report`` shows: how attempts began and ended, what
            saves cost and removed, the loss and other values of each cycle.

    Raises:
        ValueError: If one has an invalid value.
    """

    when_busy: WhenBusy = "skip"
    on_error: OnError = "warn"
    mid_cycle: MidCycle = "exact"
    window: WindowUse = "auto"
    buffer_bytes: int | None = None
    on_save: Callable[[SaveReport], None] | None = None
    events: bool = True

    def __post_init__(self) -> None:
        refuse_unknown_choice("when_busy", self.when_busy, WhenBusy)
        refuse_unknown_choice("on_error", self.on_error, OnError)
        refuse_unknown_choice("mid_cycle", self.mid_cycle, MidCycle)
        refuse_unknown_choice("window", self.window, WindowUse)
        if self.buffer_bytes is not None and self.buffer_bytes < 1:
            raise ValueError(f"buffer_bytes must be at least 1, got {self.buffer_bytes}")


@dataclass(frozen=True)
class Mirror:
    """Describes a further root, usually remote, that follows the run root, usually a local one.

    A checkpoint is committed at the run root and then uploaded beside training, the newest first; a checkpoint that the
    next one overtakes is not uploaded. A start takes the newest whole checkpoint of all roots, and copies it back to
    the run root if that lacks it. The last of several mirrors is the fence: a start is opened there first.

    Attributes:
        root: A path, a URL, or a `ckptkit.storage.Storage`.
        keep: What retention keeps at the mirror; default the same as at the run root.
        every: The least time between the begins of two uploads; at the end, the newest commit is uploaded at once.
        bandwidth: The most bytes a second that each rank uploads while it trains; None for no bound.
        required: Whether a start is refused when the mirror cannot be reached, and the end of the training fails when
            the last upload does. If False, such a process goes on without this mirror, and does not exclude processes
            on other machines that see only this mirror.
        storage_options: For the mirror's backend.
        storage: The opened root.

    Raises:
        ValueError: If ``keep`` is no policy, ``every`` is negative, or ``bandwidth`` is less than 1.
        TypeError: If ``every`` is no `timedelta`.
        StorageError: If the root's URL has no backend.
    """

    root: str | os.PathLike[str] | Storage = field(repr=False)
    keep: KeepPolicy | None = field(default=None, kw_only=True)
    every: timedelta = field(default=timedelta(0), kw_only=True)
    bandwidth: int | None = field(default=None, kw_only=True)
    required: bool = field(default=True, kw_only=True)
    storage_options: Mapping[str, Any] | None = field(default=None, kw_only=True, repr=False)
    storage: Storage = field(init=False)

    def __post_init__(self) -> None:
        refuse_wrong_policies(keep=self.keep)
        if not isinstance(self.every, timedelta):
            raise TypeError(f"every must be a timedelta, such as timedelta(minutes=10), got {self.every!r}")
        if self.every < timedelta(0):
            raise ValueError(f"every must not be negative, got {self.every}")
        if self.bandwidth is not None and self.bandwidth < 1:
            raise ValueError(f"bandwidth must be at least 1 byte a second, got {self.bandwidth}")
        object.__setattr__(self, "storage", open_storage(self.root, self.storage_options))


AnyMirror: TypeAlias = str | os.PathLike[str] | Storage | Mirror
Mirrors: TypeAlias = AnyMirror | Sequence[AnyMirror] | None
"""No mirror, one, or several, the nearest first."""


def mirrors_of(given: Mirrors) -> Sequence[Mirror]:
    """Open what ``mirror=`` was given as.

    Raises:
        ValueError, TypeError, StorageError: As `Mirror`.
    """
    if given is None:
        return ()
    several = given if isinstance(given, Sequence) and not isinstance(given, str) else (given,)
    return tuple(mirror if isinstance(mirror, Mirror) else Mirror(mirror) for mirror in several)


@dataclass(frozen=True, kw_only=True)
class Preemption:
    """Says what happens when the scheduler asks the training to end, by SIGTERM or SIGUSR1.

    Attributes:
        grace: How long after the request the final save may take. SLURM and Kubernetes kill 30 s after SIGTERM by
            default.
        then: What happens once the state of the last micro-step is saved. ``"exit"``: `Preempted` ends the process with
            code 143, so nothing after the training runs; after ``grace``, the process ends with the same code in any
            case. ``"return"``: ``preempted`` is True from then on; ``Model.train`` returns, and a loop of one's own is
            expected to end. ``"off"``: nothing is watched.
        when: Requests the same: the path of a file, looked for once a second, which requests it by its existence; or a
            callable, called after each micro-step, that returns True.

    Raises:
        ValueError: If one has an invalid value.
    """

    grace: timedelta = timedelta(seconds=25)
    then: AfterPreemption = "exit"
    when: PreemptWhen = None

    def __post_init__(self) -> None:
        refuse_no_duration("grace", self.grace, usual="seconds=25")
        refuse_unknown_choice("then", self.then, AfterPreemption)
        if isinstance(self.when, str | os.PathLike) and os.fspath(self.when):
            object.__setattr__(self, "when", os.path.abspath(self.when))
        elif not (self.when is None or callable(self.when)):
            raise ValueError(f"when must be the path of a file or a callable, got {self.when!r}")


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """Says what matters in a job of many ranks only.

    Attributes:
        patience: How long rank 0 waits for the parts of the others while none arrives.
        check_replicas: Whether every save, and not only the first of a start, compares the bits of what must be the
            same in all ranks; costs a digest of the state on the training thread.
        elastic: Accept a checkpoint of another number of ranks: its K, counters, data position and accumulators are
            folded so that ranks x K x micro-batch stays. ``accumulation_steps`` of the train cell may be those for this
            world, or those of the world in which the run began. Equal up to floating-point order; the log says what is
            not exact.
        placement: Maps the name of a parameter to ``"replicated"``, ``"per_rank"``, or a `Box` of the whole tensor if a
            rank holds a part of it; None keeps the default. By default, what an optimizer owns, what is declared frozen
            and the loss scale are replicated; all else is per rank.

    Raises:
        ValueError: If ``patience`` is not a positive duration.
    """

    patience: timedelta = timedelta(minutes=5)
    check_replicas: bool = False
    elastic: bool = False
    placement: PlacementByName | None = None

    def __post_init__(self) -> None:
        refuse_no_duration("patience", self.patience, usual="minutes=5")


_now = partial(datetime.now, timezone.utc)


def _new_token() -> str:
    """Return 32 random hexadecimal digits."""
    return secrets.token_hex(16)


@dataclass(frozen=True, kw_only=True)
class System:
    """Gives time, chance and names; for tests and simulations.

    Attributes:
        clock: Gives the time of day; stored for people, orders nothing.
        monotonic: Gives seconds, for `SaveEvery(interval=...)` and the grace of a preemption.
        new_token: Gives 32 fresh random hexadecimal digits.
        host: Name of this process's host, by default with the number of the process, for other processes that meet it.
        boot: Identifies the boot of this host, within which ``monotonic`` is one clock for all processes; None if that
            is unknown.
    """

    clock: Callable[[], datetime] = _now
    monotonic: Callable[[], float] = time.monotonic
    new_token: Callable[[], str] = _new_token
    host: str = field(default_factory=this_process)
    boot: str | None = field(default_factory=boot_id)


def refuse_wrong_policies(*, save: SavePolicy | None = None, keep: KeepPolicy | None = None) -> None:
    """Raise ValueError unless each is a policy or None."""
    for option, value, verb in (("save", save, "due"), ("keep", keep, "keeps")):
        if value is not None and not hasattr(value, verb):
            example, usual = ("SaveEvery(optimizer_steps={})", 100) if verb == "due" else ("KeepLatest({})", 3)
            given: object = value
            number = given if isinstance(given, int) and given > 0 else usual
            raise ValueError(
                f"{option} must be a policy such as SaveEvery or KeepLatest, got {value!r}: write "
                f"{option}=ck.{example.format(number)}"
            )


def refuse_other_types(**given: tuple[object, type]) -> None:
    """Raise TypeError unless each, given with its type by its name, is of that type or None."""
    for option, (value, group) in given.items():
        if value is not None and not isinstance(value, group):
            raise TypeError(
                f"{option} takes a ckptkit.{group.__name__}, got {value!r}: see help(ckptkit.{group.__name__})"
            )


def refuse_unknown_choice(option: str, value: object, choices: object) -> None:
    """Raise ValueError unless ``value`` is one of the ``Literal`` type's ``choices``."""
    *others, last = get_args(choices)
    if value not in (*others, last):
        raise ValueError(f"{option} must be {', '.join(map(repr, others))} or {last!r}, got {value!r}")


def refuse_no_duration(option: str, value: timedelta, *, usual: str) -> None:
    """Raise ValueError unless ``value`` is a positive timedelta; ``usual`` is the example argument in the message."""
    if not isinstance(value, timedelta) or value <= timedelta():
        raise ValueError(f"{option} must be a positive timedelta, got {value!r}: write {option}=timedelta({usual})")
