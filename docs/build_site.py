"""Builds the documentation site from the pages of the project: ``python docs/build_site.py OUT``.

The pages are copied with the folders that they link to, so that each link is the same there; the API reference is made
from the docstrings. Fails if a link, an anchor or a page of the navigation is missing. Needs ``pip install '.[site]'``.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from generate_api import render  # beside this file

PROJECT = Path(__file__).parents[1]
PAGES = (
    "*.md",
    "LICENSE",
    "ckptkit/mindspore/digits/*.md",
    "docs/*.md",
    "docs/*.svg",
    "docs/zh/*.md",
    "docs/adr/*.md",
    "docs/cards/*.md",
    "examples/**/*",
    "benchmarks/**/*.md",
)
LISTED = ("docs/adr", "docs/cards", "examples/projects")  # folders without a page of their own


def copy_pages(target: Path) -> None:
    """Copy all pages, and write a page for each folder that has none."""
    for pattern in PAGES:
        for path in PROJECT.glob(pattern):
            if path.is_file() and "__pycache__" not in path.parts:
                (target / path.relative_to(PROJECT)).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, target / path.relative_to(PROJECT))
    for folder in LISTED:
        files = sorted(path for path in (target / folder).iterdir() if path.is_file())
        lines = [f"- [{_title(path)}]({path.name})" for path in files]
        (target / folder / "README.md").write_text("\n".join([f"# {folder}", "", *lines, ""]))
    for page in target.rglob("*.md"):
        text = page.read_text()
        for folder in LISTED:
            relative = os.path.relpath(target / folder, page.parent)
            text = re.sub(rf"\]\({re.escape(relative)}/?\)", f"]({relative}/README.md)", text)
        page.write_text(text)


def _title(path: Path) -> str:
    first = path.read_text().partition("\n")[0]
    return first.removeprefix("# ") if path.suffix == ".md" else path.name


def main(out: str) -> int:
    """Build into ``out``; return the exit code of MkDocs."""
    with tempfile.TemporaryDirectory() as folder:
        pages = Path(folder) / "pages"
        copy_pages(pages)
        (pages / "docs/api.md").write_text(render(), encoding="utf-8")
        command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(Path(out).absolute())]
        environment = {**os.environ, "CKPTKIT_PAGES": str(pages)}
        return subprocess.run(command, cwd=PROJECT, env=environment, check=False).returncode  # noqa: S603 - own words


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
