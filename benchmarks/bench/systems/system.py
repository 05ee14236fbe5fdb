"""The seam below which a way to save is measured."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol


class System(Protocol):
    """One way to save, over one `Workload`; everything that it writes lies below its folder.

    The labels that it is called with rise by one from save to save.
    """

    def save(self, label: int) -> None:
        """Save the state as it is now; the caller is stalled as long as this takes, earlier saves included."""
        ...

    def stepped(self) -> None:
        """Called after every micro-step, and after the update where there is one; counts as stall."""
        ...

    def fence(self) -> None:
        """Called right before every update: whatever still reads weights or moments lets go; counts as stall."""
        ...

    def path(self, label: int) -> Path:
        """The file or folder that holds this checkpoint and nothing else."""
        ...

    def complete(self, label: int) -> bool:
        """Whether that save has committed; asked by another thread."""
        ...

    def wait(self) -> None:
        """Until every save is complete; raises if one failed."""
        ...

    def restore(self, label: int) -> None:
        """Bring a checkpoint into the live state."""
        ...

    def reports(self) -> list[dict[str, float]]:
        """What the system itself says of its saves since the last call."""
        ...


class Nothing:
    """No saves at all; what a system below does not need to do it leaves as here."""

    def save(self, label: int) -> None:
        pass

    def stepped(self) -> None:
        pass

    def fence(self) -> None:
        pass

    def path(self, label: int) -> Path:
        raise LookupError(f"there is no checkpoint {label}: nothing is saved")

    def complete(self, label: int) -> bool:
        return True

    def wait(self) -> None:
        pass

    def restore(self, label: int) -> None:
        pass

    def reports(self) -> list[dict[str, float]]:
        return []
