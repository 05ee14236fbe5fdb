"""docs/troubleshooting.md: its shape, that the messages it quotes exist, and that those of everyday use are all there.

A quoted message has ``...`` where the real one has a number or a name. What is quoted is compared with the source, so
a message that is changed there has to be changed here, in both languages.
"""

from __future__ import annotations

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

EVERYDAY = (
    *("mindspore", "storage", "snapshot", "core/tree.py", "core/accumulation.py"),
    *(f"checkpoint/{name}.py" for name in ("write", "receipts", "resharded")),
    *(f"run/{name}.py" for name in ("attempt", "fence", "joint_start", "resolve", "retention", "saver", "sweep")),
    *("run/homes.py", "run/upload.py"),
    *(
        f"manager/{name}.py"
        for name in ("manager", "run", "writer", "final_save", "agreement", "mirrors", "preemption")
    ),
    *("manager/preemption.py", "manager/recorder.py"),
)
OURS = {
    *("ResumeError", "StateMismatchError", "StaleAttemptError", "SaveFailedError", "StorageError"),
    *("CheckpointNotFoundError", "FormatVersionError"),
}
# Of those modules, what nobody can meet by using ckptkit as the documents say, by a part of the message.
RARE = {
    "could not read the objects of this training": "a defect of ckptkit; the traceback in the log says all there is",
    "the objects of this training could not be read": "likewise, with strict=True",
    "is no longer committed at": "`replay --record` leaves such a checkpoint out",
    "times, which cannot be undone": "a generator that has spawned others since its start; says all there is to say",
    "another save of this process is still writing": "a defect of ckptkit, which takes a writer for ended",
    "the server lists": "a server that answers what it was not asked",
    "is the last number of the format": "a million starts, or a stray document; says what to do",
    "the file system lists": "likewise",
    "the server's pages do not continue": "likewise",
    "the server does not support reading a part of a file": "likewise",
    "bytes arrived, expected": "likewise",
    "it exists, and nothing is ever overwritten": "a defect of ckptkit or a foreign writer in the run's folders",
    "bytes announced": "a defect of ckptkit",
    "it was not made by a StateManager": "a checkpoint of a program that uses the lower layers itself",
    "keeps the stop request of RunContext": "a MindSpore that moved it; the tests notice",
    "keep numbers below 1.2e-38": "a MindSpore that computes in other threads; the tests notice",
    "was removed while it was read": "of commands only; a job that saves ten times within a moment",
    "has not ended: its last file": "of a start at an unfinished copy or import only; says all there is to say",
    "there is no committed checkpoint at": "of commands only; says all there is to say",
    "while another error was being raised": "repeats an error that has an entry",
    "the save was interrupted before it began": "after Ctrl-C; says all there is to say",
    "default_block_size must be": "says all there is to say",
    "max_concurrency must be": "likewise",
    "settle must be a timedelta": "likewise",
    "has characters that cannot be printed": "likewise",
    "twice, so that both copies of a file would lie on one machine": "likewise",
    "was removed while it was copied to another machine": "by another job at the same root, of which the fence tells",
}


class Entry(NamedTuple):
    symptom: str
    parts: dict[str, str]

    def quoted(self, word: str) -> list[str]:
        return re.findall(r"`([^`]+)`", self.parts.get(word, ""))


class Message(NamedTuple):
    where: str
    text: str  # \0 for what is filled in


def entries(page: Path) -> list[Entry]:
    found = []
    for section in re.split(r"^### ", page.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        symptom, _, body = section.partition("\n")
        body = re.split(r"^## ", body, flags=re.MULTILINE)[0]
        parts = re.findall(r"^\*\*(\w+)\*\* (.*?)(?=\n\n|\Z)", body.strip(), flags=re.MULTILINE | re.DOTALL)
        found.append(Entry(symptom.strip(), dict(parts)))
    return found


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


def everyday_messages() -> Iterator[Message]:
    """What is raised as an error of ckptkit's or logged as a warning in the modules of everyday use."""
    for part in EVERYDAY:
        for path in sorted((PACKAGE / part).rglob("*.py")) if (PACKAGE / part).is_dir() else [PACKAGE / part]:
            tree = ast.parse(path.read_text())
            functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
            for call in ast.walk(tree):
                if not isinstance(call, ast.Call) or not call.args:
                    continue
                name = ast.unparse(call.func)
                if name in OURS or name.endswith("log.warning") or name == "warn_of_failure":
                    message = call.args[name == "warn_of_failure"]
                    made_by = functions.get(ast.unparse(message.func)) if isinstance(message, ast.Call) else None
                    text = max(texts_within(made_by), key=len) if made_by else text_of(message)
                    text = re.sub(r"%(\.\d)?[sdf]", "\0", text)
                    if len(re.findall(r"[A-Za-z]{2,}", text)) > 3:  # "could not read X: Y" says nothing by itself
                        yield Message(f"{path.relative_to(PACKAGE)}:{call.lineno}", text)


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
    assert len(found) > 40
    wrong = [one.symptom for one in found if [word for word in one.parts if word != message] != [cause, fix]]
    assert wrong == []
    assert [one.symptom for one in found if not one.symptom or len({*one.parts.values()}) != len(one.parts)] == []


def test_both_languages_quote_the_same_messages() -> None:
    english, chinese = ([one.quoted(WORDS[language][0]) for one in entries(PAGES[language])] for language in PAGES)
    assert chinese == english


def test_every_message_that_is_quoted_exists(texts: list[str]) -> None:
    quotes = [quote for one in entries(PAGES["en"]) for quote in one.quoted("Message")]
    assert len(quotes) > 80
    assert [quote for quote in quotes if not re.search(r"\w{4}", quote)] == [], "too short to be found by"
    assert [quote for quote in quotes if not any(is_of(quote, text) for text in texts)] == []


def test_every_everyday_message_is_quoted() -> None:
    quotes = [quote for one in entries(PAGES["en"]) for quote in one.quoted("Message")]
    found = list(everyday_messages())
    assert len(found) > 100
    missing = [
        f"{one.where}: {one.text}"
        for one in found
        if not any(is_of(quote, " ".join(one.text.split())) for quote in quotes)
        and not any(part in one.text for part in RARE)
    ]
    assert missing == [], "give them an entry in docs/troubleshooting.md and its translation, or say in RARE why not"


@pytest.mark.parametrize(
    ("quote", "text", "expected"),
    [
        ("begin at epoch ..., but", "training would begin at epoch \0, but the run", True),
        ("but ... begin", "training would begin at epoch \0, but the run", False),
        ("would begin at 3", "training would begin at epoch \0", False),
    ],
)
def test_a_quote_is_of_a_message(quote: str, text: str, expected: bool) -> None:
    assert is_of(quote, text) is expected
