"""A watch of a copy or an audit that keeps what it was told, from whatever thread."""

import threading


class ToldWatch:
    def __init__(self) -> None:
        self.planned: list[tuple[int, int]] = []
        self.read_bytes = 0
        self.ended: list[tuple[str, str]] = []
        self._lock = threading.Lock()

    def plan(self, checkpoints: int, size_bytes: int) -> None:
        self.planned.append((checkpoints, size_bytes))

    def advance(self, size_bytes: int) -> None:
        with self._lock:
            self.read_bytes += size_bytes

    def end(self, name: str, outcome: str) -> None:
        self.ended.append((name, outcome))
