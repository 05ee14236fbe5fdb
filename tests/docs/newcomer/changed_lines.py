"""How many lines of a script a user has to change; standard library only."""

from __future__ import annotations

import ast
import difflib
from pathlib import Path

SCRIPTS = Path(__file__).parent


def changed_lines(before: Path, after: Path) -> list[str]:
    """Every line that was taken out or put in, blank ones and the docstring apart."""
    difference = difflib.ndiff(_code(before), _code(after))
    return [line for line in difference if line[0] in "+-" and line[1:].strip()]


def _code(script: Path) -> list[str]:
    text = script.read_text(encoding="utf-8")
    docstring = ast.parse(text).body[0]
    return text.splitlines()[docstring.end_lineno :]
