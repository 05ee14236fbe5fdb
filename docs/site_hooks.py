"""Hooks of MkDocs that make the pages, which tests also execute, pages of the site."""

from __future__ import annotations

import re
from typing import Any

_FENCE = re.compile(r"^( *```[a-z]+) [^\n]*$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Take the words for tests (``python file=train.py``) out of fences, which MkDocs does not know."""
    return _FENCE.sub(r"\1", markdown)
