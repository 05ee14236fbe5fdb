"""Defines the names of everything in a run, relative to its root.

Guarantees: `CheckpointName.parse` accepts exactly what ``str`` gives. Of two names of one attempt, the greater is
further in training.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ckptkit.core.progress import Progress

RUN = "run.json"
ATTEMPTS = "attempts"
CHECKPOINTS = "checkpoints"
FROZEN = "frozen"
EVENTS = "events"
COMMIT = "COMMIT"
MANIFEST = "manifest.json"

# Attempts count from 1. Digits are ASCII only: \d would match any script's digits, which int() accepts.
_NUMBER = r"((?!000000)[0-9]{6})"
_CHECKPOINT = re.compile(rf"a{_NUMBER}-c([0-9]{{10,16}})-m([0-9]{{4,16}})(?:-t([0-9]{{2,6}}))?")
_ATTEMPT = re.compile(rf"{_NUMBER}\.json")
_FROZEN = re.compile(rf"a{_NUMBER}")
_SEGMENT = re.compile(rf"a{_NUMBER}-((?!0000)[0-9]{{4}}|[1-9][0-9]{{4,5}})\.jsonl")


@dataclass(frozen=True, order=True)
class CheckpointName:
    attempt: int
    cycles: int
    micro_step: int
    nth_try: int = 1

    def __str__(self) -> str:
        suffix = f"-t{self.nth_try:02d}" if self.nth_try > 1 else ""
        return f"a{self.attempt:06d}-c{self.cycles:010d}-m{self.micro_step:04d}{suffix}"

    @classmethod
    def parse(cls, text: str) -> CheckpointName | None:
        match = _CHECKPOINT.fullmatch(text)
        if match is None:
            return None
        attempt, cycles, micro_step, nth_try = match.groups()
        name = cls(int(attempt), int(cycles), int(micro_step), int(nth_try or 1))
        return name if str(name) == text else None

    def reaches(self, progress: Progress) -> bool:
        """Return whether the checkpoint holds what its attempt had trained at ``progress``, or more."""
        return (self.cycles, self.micro_step) >= (progress.cycles, progress.micro_step)

    @property
    def folder(self) -> str:
        return f"{CHECKPOINTS}/{self}"

    @property
    def commit_key(self) -> str:
        return f"{self.folder}/{COMMIT}"

    @property
    def manifest_key(self) -> str:
        return f"{self.folder}/{MANIFEST}"

    @property
    def receipts_folder(self) -> str:
        """Key of the folder in which the ranks of a larger job confirm that their parts are written."""
        return f"{self.folder}/receipts"

    def rank_key(self, rank: int) -> str:
        return f"{self.folder}/rank-{rank:05d}.json"

    def rank_folder(self, rank: int) -> str:
        return f"{self.folder}/rank-{rank:05d}"


def attempt_key(number: int) -> str:
    return f"{ATTEMPTS}/{number:06d}.json"


def parse_attempt(file_name: str) -> int | None:
    match = _ATTEMPT.fullmatch(file_name)
    return int(match[1]) if match else None


def checkpoints_prefix(attempt: int) -> str:
    """Return the prefix that only the names of this attempt's checkpoints have."""
    return f"a{attempt:06d}-"


def frozen_folder(attempt: int) -> str:
    return f"{FROZEN}/a{attempt:06d}"


def parse_frozen(folder_name: str) -> int | None:
    match = _FROZEN.fullmatch(folder_name)
    return int(match[1]) if match else None


def segment_key(attempt: int, number: int) -> str:
    return f"{EVENTS}/a{attempt:06d}-{number:04d}.jsonl"


def parse_segment(file_name: str) -> tuple[int, int] | None:
    match = _SEGMENT.fullmatch(file_name)
    return (int(match[1]), int(match[2])) if match else None


def attempt_of(key: str) -> int | None:
    """Return the only attempt that writes ``key``; None if the key does not tell."""
    folder, _, rest = key.partition("/")
    first, below, _ = rest.partition("/")
    if folder == CHECKPOINTS and below:
        name = CheckpointName.parse(first)
        return name.attempt if name else None
    if folder == FROZEN and below:
        return parse_frozen(first)
    if folder == EVENTS and not below:
        return (parse_segment(first) or (None,))[0]
    return parse_attempt(first) if folder == ATTEMPTS and not below else None
