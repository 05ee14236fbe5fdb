"""Receives the progress of a command over many checkpoints."""

from __future__ import annotations


class CheckpointWatch:
    """Shows nothing; `ckptkit.cli.output.CheckpointBar` does. An audit calls it from several threads."""

    def plan(self, checkpoints: int, size_bytes: int) -> None:
        """Receive the total work; it may grow."""

    def advance(self, size_bytes: int) -> None:
        """Receive the number of bytes just read or copied."""

    def end(self, name: str, outcome: str) -> None:
        """Receive the outcome of a checkpoint."""
