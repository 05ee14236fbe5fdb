"""Every code block of README and docs runs here, or in .ci/run; a block that neither runs is an error.

A block's info string says how: ``python`` is a script of its own; ``python file=X`` is the script X;
``python after=X`` continues X in one process, where X has run before; ``bash after=X`` runs where X has run.
``bash`` alone is installation, which .ci/run takes from README.md word for word; or it sets variables, whose values
are then those of a test server, and calls ckptkit. ``json`` and ``text`` show something and are no code.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from servers.client import s3_client
from servers.fixtures import Bucket

PROJECT = Path(__file__).parent.parent
ENGLISH = [
    PROJECT / "README.md",
    PROJECT / "examples/README.md",
    *sorted((PROJECT / "docs").glob("*.md")),
    *sorted((PROJECT / "docs/adr").glob("*.md")),
]
SET = {"AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
SET |= {"OBS_ENDPOINT", "OBS_ACCESS_KEY_ID", "OBS_SECRET_ACCESS_KEY"}
INSTALLATION = {"pip install . && ckptkit demo", "pip install '.[test]' && pytest"}
UNTRANSLATED = {"architecture.md", "format.md"}  # for those who change ckptkit, or read its files with other programs
TRANSLATED = {
    "README.md": "README.zh-CN.md",
    "examples/README.md": "examples/README.zh-CN.md",
    **{
        f"docs/{page.name}": f"docs/zh/{page.name}"
        for page in sorted((PROJECT / "docs").glob("*.md"))
        if page.name not in UNTRANSLATED
    },
}


class Block(NamedTuple):
    language: str
    option: str
    code: str


def blocks(text: str) -> list[Block]:
    found = re.findall(r"^```([^\n]*)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    return [Block(*info.partition(" ")[::2], code) for info, code in found]


@pytest.fixture
def object_store(moto, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A server with the bucket that is called "bucket" in the documents, reached by what they say should be set."""
    made = Bucket("bucket", moto.endpoint, s3_client(moto.endpoint))
    made.client.create_bucket(Bucket=made.name)
    for name in SET:
        monkeypatch.setenv(name, moto.endpoint if "ENDPOINT" in name else "testing")
    yield
    made.delete()


def run_python(code: str, folder: Path, name: str = "block.py") -> str:
    """A file, since MindSpore reads the source of what it compiles."""
    (folder / name).write_text(code, encoding="utf-8")
    return run([sys.executable, name], folder)


def run(command: list[str], folder: Path) -> str:
    # `python` in a command is the one that runs the tests, and finds the same packages.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    packages = os.pathsep.join([str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "GLOG_v": "3", "COLUMNS": "120", "PATH": path, "PYTHONPATH": packages}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def run_document(text: str, folder: Path) -> None:
    scripts: dict[str, str] = {}
    for language, option, code in blocks(text):
        how, _, name = option.partition("=")
        if language == "python" and how in ("", "file"):
            scripts[name] = code
            run_python(code, folder, name or "block.py")
            if how == "file":
                run_python(code, folder, name)  # as a scheduler would start it again after its end
        elif language == "python" and how == "after":
            run_python(f"{scripts[name]}\n{code}", folder)
        elif language == "bash" and how == "after" and name in scripts:
            for line in code.splitlines():
                program, *arguments = shlex.split(line)
                assert program == "ckptkit", f"only ckptkit itself may be run after a script: {line}"
                run([sys.executable, "-m", "ckptkit", *arguments], folder)
        elif language == "bash" and option == "" and code.startswith(("export ", "ckptkit ")):
            for line in code.splitlines():
                program, *arguments = shlex.split(line)
                assert program in ("ckptkit", "export"), f"only ckptkit itself may be run: {line}"
                if program == "ckptkit":
                    run([sys.executable, "-m", "ckptkit", *arguments], folder)
                else:
                    assert {one.partition("=")[0] for one in arguments} <= SET, f"no test sets this: {line}"
        elif language == "bash" and option == "":
            assert code.strip() in INSTALLATION, f"no test runs this block:\n{code}"
        else:
            assert language in ("json", "text"), f"no test runs this block: ```{language} {option}\n{code}"


@pytest.mark.parametrize("path", ENGLISH, ids=lambda path: str(path.relative_to(PROJECT)))
@pytest.mark.usefixtures("object_store")
def test_every_block_of_the_document_runs(path: Path, tmp_path: Path) -> None:
    run_document(path.read_text(encoding="utf-8"), tmp_path)


def test_readme_opens_with_the_two_commands_that_ci_runs() -> None:
    first, second = blocks((PROJECT / "README.md").read_text(encoding="utf-8"))[:2]
    assert {first.code.strip(), second.code.strip()} == INSTALLATION
    assert "readme_command pytest" in (PROJECT / ".ci/run").read_text()
    assert "readme_command demo" in (PROJECT / ".ci/run").read_text()


@pytest.mark.parametrize(("english", "chinese"), TRANSLATED.items())
def test_the_chinese_document_has_the_same_code_and_sections(english: str, chinese: str) -> None:
    original = (PROJECT / english).read_text(encoding="utf-8")
    translation = (PROJECT / chinese).read_text(encoding="utf-8")
    assert blocks(translation) == blocks(original)
    headings = re.compile(r"^(#+) ", flags=re.MULTILINE)
    assert headings.findall(translation) == headings.findall(original)
    rows = re.compile(r"^\|", flags=re.MULTILINE)
    assert len(rows.findall(translation)) == len(rows.findall(original))


def test_every_relative_link_leads_somewhere() -> None:
    documents = [
        *ENGLISH,
        PROJECT / "README.zh-CN.md",
        PROJECT / "examples/README.zh-CN.md",
        PROJECT / "CHANGELOG.md",
        *(PROJECT / "docs/zh").glob("*.md"),
    ]
    links = 0
    for document in documents:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", document.read_text(encoding="utf-8")):
            if not target.startswith("http"):
                links += 1
                assert (document.parent / target).exists(), f"{document.name} links to {target}"
    assert links > 10


@pytest.mark.parametrize(
    "text",
    [
        "```python\nraise SystemExit(1)\n```\n",
        "```bash\nrm -rf build\n```\n",
        "```bash\nexport PATH=here\nckptkit ls x\n```\n",
        "```bash after=nowhere.py\nckptkit ls x\n```\n",
        "```sh\nckptkit ls x\n```\n",
    ],
)
def test_a_wrong_or_uncovered_block_is_noticed(text: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        run_document(text, tmp_path)
