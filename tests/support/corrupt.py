"""Damages files, in every way that tests need."""

from pathlib import Path


def corrupted(data: bytes, how: str = "flip", *, at: int | None = None, mask: int = 1) -> bytes:
    """Return ``data`` with a byte changed (``flip``, by default in the middle), or with its end ``cut`` off."""
    changed = bytearray(data)
    if how == "cut":
        return bytes(changed[:-3])
    assert how == "flip", how
    changed[len(changed) // 2 if at is None else at] ^= mask
    return bytes(changed)


def corrupt(path: Path, how: str = "flip", *, at: int | None = None, mask: int = 1) -> None:
    """Damage the file as `corrupted` does, or have it ``missing``."""
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes(corrupted(path.read_bytes(), how, at=at, mask=mask))
