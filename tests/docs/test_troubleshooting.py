"""docs/troubleshooting.md: its shape, and that the messages which it quotes exist.

A quoted message has ``...`` where the real one has a number or a name. What is quoted is compared with the source, so
a message that is changed there has to be changed here, in both languages.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import ckptkit

PACKAGE = Path(ckptkit.__file__).parent
DOCS = Path(__file__).parents[2] / "docs"
PAGES = {"en": DOCS / "troubleshooting.md", "zh": DOCS / "zh/troubleshooting.md"}
WORDS = {"en": ("Message", "Cause", "Fix"), "zh": ("信息", "原因", "处理")}


class Entry(NamedTuple):
    symptom: str
    parts: dict[str, str]

    def quoted(self, word: str) -> list[str]:
        return re.findall(r"`([^`]+)`", self.parts.get(word, ""))


def entries(page: Path) -> list[Entry]:
    found = []
    for section in re.split(r"^### ", page.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        symptom, _, body = section.partition("\n")
        body = re.split(r"^## ", body, flags=re.MULTILINE)[0]
        parts = re.findall(r"^\*\*(\w+)\*\* (.*?)(?=\n\n|\Z)", body.strip(), flags=re.MULTILINE | re.DOTALL)
        found.append(Entry(symptom.strip(), dict(parts)))
    return found


def first_messages() -> list[str]:
    """The messages that the Chinese page explains before its entries; in English they say it themselves."""
    beginning = PAGES["zh"].read_text(encoding="utf-8").partition("\n## ")[0]
    return [
        quote for line in re.findall(r"^- (.*?)：", beginning, re.MULTILINE) for quote in re.findall(r"`([^`]+)`", line)
    ]


def text_of(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else "\0"
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(value) for value in node.values)
    if isinstance(node, ast.BinOp):
        return text_of(node.left) + text_of(node.right)
    return "\0"


def texts_within(tree: ast.AST) -> Iterator[str]:
    """Every text of a module that may be a message or a part of one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant | ast.JoinedStr | ast.BinOp):
            yield re.sub(r"%(\.\d)?[sdf]", "\0", text_of(node))


def is_of(quote: str, text: str) -> bool:
    """Whether the pieces of a quote stand in a message, in their order."""
    at = 0
    for piece in filter(None, (piece.strip() for piece in quote.split("..."))):
        at = text.find(piece, at)
        if at < 0:
            return False
        at += len(piece)
    return True


@pytest.fixture(scope="module")
def texts() -> list[str]:
    found = []
    for path in PACKAGE.rglob("*.py"):
        found += [" ".join(text.split()) for text in texts_within(ast.parse(path.read_text()))]
    return [text for text in found if len(text) > 8]


@pytest.mark.parametrize("language", PAGES)
def test_every_entry_is_symptom_cause_and_fix(language: str) -> None:
    message, cause, fix = WORDS[language]
    found = entries(PAGES[language])
    assert len(found) > 20
    wrong = [one.symptom for one in found if [word for word in one.parts if word != message] != [cause, fix]]
    assert wrong == []
    assert [one.symptom for one in found if not one.symptom or len({*one.parts.values()}) != len(one.parts)] == []


def test_both_languages_quote_the_same_messages() -> None:
    english, chinese = ([one.quoted(WORDS[language][0]) for one in entries(PAGES[language])] for language in PAGES)
    assert chinese == english


def test_every_message_that_is_quoted_exists(texts: list[str]) -> None:
    quotes = [quote for one in entries(PAGES["en"]) for quote in one.quoted("Message")]
    assert len(quotes) > 60
    assert len(first_messages()) >= 20
    quotes += first_messages()
    assert [quote for quote in quotes if not re.search(r"\w{4}", quote)] == [], "too short to be found by"
    assert [quote for quote in quotes if not any(is_of(quote, text) for text in texts)] == []
