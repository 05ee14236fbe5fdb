"""The API reference of the site, made from the docstrings: no public name is without documentation."""

import ast
import re
import runpy
from pathlib import Path

import pytest

import ckptkit
from ckptkit import data, nn

PROJECT = Path(__file__).parents[2]
NAMES = [name for name in ckptkit.__all__ if name not in ("data", "nn")]
NAMES += [f"{module.__name__.rpartition('.')[2]}.{name}" for module in (data, nn) for name in module.__all__]


@pytest.fixture(scope="module")
def reference() -> str:
    page: str = runpy.run_path(str(PROJECT / "docs/generate_api.py"))["render"]()
    return page


def names_for_tests() -> list[str]:
    """What the modules of ckptkit.testing define without an underscore, read from the source."""
    return [
        f"testing.{path.stem}.{node.name}"
        for path in sorted(Path(ckptkit.__file__).parent.glob("testing/[a-z]*.py"))
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_")
    ]


def test_every_public_name_has_more_than_a_signature(reference: str) -> None:
    for name in (*NAMES, *names_for_tests()):
        entry = re.search(rf"^### {re.escape(name)}\n(.*?)(?=^#|\Z)", reference, flags=re.MULTILINE | re.DOTALL)
        assert entry, f"{name} has no heading"
        prose = re.sub(r"^```.*?^```$", "", entry[1], flags=re.MULTILINE | re.DOTALL)
        assert len(prose.split()) > 3, f"nothing but the signature of {name}"


def test_every_public_name_is_on_a_written_page() -> None:
    """A page says what the name is for."""
    pages = "\n".join(page.read_text(encoding="utf-8") for page in sorted((PROJECT / "docs").glob("*.md")))
    assert [name for name in NAMES if not re.search(rf"\b{re.escape(name.rpartition('.')[2])}\b", pages)] == []
