"""Draws what ``ckptkit demo`` prints, for README: ``python docs/draw_demo.py`` runs it and writes ``docs/demo.svg``.

The picture has only text that a real run has printed, but not the seconds that it took. It follows the light or dark
scheme of who looks at it, loads no font, and is as wide with any font. ``tests/docs/test_demo.py`` compares it with
what the demo prints now.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape

PICTURE = Path(__file__).with_name("demo.svg")
COLUMNS = 100
_CHARACTER, _LINE, _MARGIN, _BAR = 8, 16, 18, 30  # pixels
_COLOURS = (  # the first one that matches colours what it matches
    ("good", r"\bequal\b|Killed three times, and not one bit differs\."),
    ("bad", r"SIGKILL[a-z -]*[a-z]"),
    ("faint", r"[─-╿]+"),
    ("strong", r"^\$ .*|^Each life.*"),
)
_STYLE = """
text { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; white-space: pre; fill: #1f2328 }
.page { fill: #f6f8fa; stroke: #d1d9e0 } .good { fill: #1a7f37 } .bad { fill: #cf222e } .faint { fill: #9198a1 }
.strong { font-weight: 600 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .page { fill: #0d1117; stroke: #3d444d }
  .good { fill: #3fb950 } .bad { fill: #f85149 } .faint { fill: #656c76 }
}
"""


def run_demo(*arguments: str) -> list[str]:
    """Run the demo and return the lines that it prints.

    Raises:
        subprocess.CalledProcessError: If it finds a difference.
    """
    command = [sys.executable, "-m", "ckptkit", "demo", *arguments]
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "NO_COLOR": "1"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)  # noqa: S603 - our own
    return done.stdout.splitlines()


def picture_of(lines: list[str]) -> str:
    """Return the picture of a terminal with ``lines``."""
    shown = ["$ ckptkit demo", *(re.sub(r" [0-9:]+$", "", line.rstrip()) for line in lines)]
    width = 2 * _MARGIN + _CHARACTER * max(map(len, shown))
    height = 2 * _MARGIN + _BAR + _LINE * len(shown)
    dots = "".join(f'<circle class="faint" cx="{_MARGIN + 6 + 18 * at}" cy="20" r="5"/>' for at in range(3))
    text = "\n".join(_text(line, at) for at, line in enumerate(shown) if line)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">\n'
        f"<title>ckptkit demo</title>\n<style>{_STYLE}</style>\n"
        f'<rect class="page" x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8"/>\n{dots}\n{text}\n</svg>\n'
    )


def lines_of(picture: str) -> list[str]:
    """Return the lines of text in a picture."""
    found = re.findall(r"<text [^>]*>(.*)</text>", picture)
    return [re.sub(r"<[^>]*>", "", line) for line in found]


def _text(line: str, at: int) -> str:
    y = _MARGIN + _BAR + _LINE * at + 8
    spans = "".join(_spans(line))
    return f'<text x="{_MARGIN}" y="{y}" xml:space="preserve" textLength="{_CHARACTER * len(line)}">{spans}</text>'


def _spans(line: str) -> Iterator[str]:
    pattern = "|".join(f"(?P<{name}>{expression})" for name, expression in _COLOURS)
    done = 0
    for match in re.finditer(pattern, line):
        yield escape(line[done : match.start()])
        yield f'<tspan class="{match.lastgroup}">{escape(match[0])}</tspan>'
        done = match.end()
    yield escape(line[done:])


if __name__ == "__main__":
    PICTURE.write_text(picture_of(run_demo()))
