"""docs/api.md is what the docstrings give, and no public name is without documentation."""

from __future__ import annotations

import ast
import re
import runpy
from pathlib import Path

import pytest

import ckptkit
from ckptkit import data, nn

PROJECT = Path(__file__).parents[2]
PAGES = sorted((PROJECT / "docs").glob("*.md"))
API = PROJECT / "docs/api.md"
NAMES = [name for name in ckptkit.__all__ if name not in ("data", "nn")]
NAMES += [f"{module.__name__.rpartition('.')[2]}.{name}" for module in (data, nn) for name in module.__all__]


def names_for_tests() -> list[str]:
    """Read from the source: what the modules of ckptkit.testing define without an underscore."""
    return [
        f"testing.{path.stem}.{node.name}"
        for path in sorted(Path(ckptkit.__file__).parent.glob("testing/[a-z]*.py"))
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_")
    ]


def test_the_page_is_what_the_docstrings_give() -> None:
    made = runpy.run_path(str(PROJECT / "docs/generate_api.py"))["render"]()
    assert made.splitlines() == API.read_text(encoding="utf-8").splitlines(), "run `python docs/generate_api.py`"


@pytest.mark.parametrize("name", [*NAMES, *names_for_tests()])
def test_every_public_name_has_a_meaningful_entry(name: str) -> None:
    """The entry in docs/api.md has more than a signature."""
    entry = re.search(rf"^### {re.escape(name)}\n(.*?)(?=^#|\Z)", API.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert entry, f"{name} has no heading in docs/api.md"
    prose = re.sub(r"^```.*?^```$", "", entry[1], flags=re.MULTILINE | re.DOTALL)
    assert len(prose.split()) > 3, f"docs/api.md shows nothing but the signature of {name}"


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_is_on_a_written_page(name: str) -> None:
    """A page other than the reference says what the name is for."""
    word = re.compile(rf"\b{re.escape(name.rpartition('.')[2])}\b")
    pages = [page.name for page in PAGES if page != API and word.search(page.read_text(encoding="utf-8"))]
    assert pages, f"no page below docs/ but the reference says what {name} is for"
