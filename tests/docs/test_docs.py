"""Every code block of README and docs runs here, or in .ci/run; a block that neither runs is an error.

`tests/docs/documents.py` says what the info string of a block means.
"""

import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from support.servers.client import s3_client
from support.servers.fixtures import Bucket

from docs.documents import PROJECT, assert_printed, blocks, run, run_document

ENGLISH = [
    PROJECT / "README.md",
    PROJECT / "CONTRIBUTING.md",
    PROJECT / "examples/README.md",
    *sorted((PROJECT / "docs").glob("*.md")),
    *sorted((PROJECT / "docs/adr").glob("*.md")),
]
# Pages with scripts to train with; CI runs them all on every change.
TRAINING = [
    f"docs/{name}.md"
    for name in (
        *("cli", "exactness", "goodput", "guide", "interchange", "obs", "object-storage", "ranks", "report", "run"),
        *("tiers", "tutorial"),
    )
]
# For those who change ckptkit, read its files with other programs, or look a name up.
UNTRANSLATED = {"architecture.md", "format.md", "testing.md", "protocol.md"}
TRANSLATED = {
    "README.md": "README.zh-CN.md",
    "examples/README.md": "examples/README.zh-CN.md",
    **{
        f"docs/{page.name}": f"docs/zh/{page.name}"
        for page in sorted((PROJECT / "docs").glob("*.md"))
        if page.name not in UNTRANSLATED
    },
}


@pytest.fixture
def object_store(moto, moto_in_environment) -> Iterator[None]:
    """A server with the bucket that is called "bucket" in the documents, reached by what they say should be set."""
    made = Bucket("bucket", moto.endpoint, s3_client(moto.endpoint))
    made.client.create_bucket(Bucket=made.name)
    yield
    made.delete()


def document(path: Path) -> object:
    """The page as a case; the default suite runs the pages that start no training of their own."""
    name = str(path.relative_to(PROJECT))
    return pytest.param(path, marks=[pytest.mark.extended] if name in TRAINING else [], id=name)


@pytest.mark.parametrize("path", [document(path) for path in ENGLISH])
@pytest.mark.usefixtures("object_store")
def test_every_block_of_the_document_runs(path: Path, tmp_path: Path) -> None:
    run_document(path.read_text(encoding="utf-8"), tmp_path)


def test_jobs_of_ci_call_known_options(tmp_path: Path) -> None:
    """The pages that show them train, and run for long; one word that is wrong is noticed."""
    text = (PROJECT / "docs/cli.md").read_text(encoding="utf-8")
    jobs = re.findall(r"^```yaml\n.*?^```$", text, flags=re.MULTILINE | re.DOTALL)
    assert len(jobs) > 1
    for job in jobs:
        run_document(job, tmp_path)
        with pytest.raises(Exception, match="No such option: --junitxml"):  # of click, or of typer's own
            run_document(job.replace("--junit ", "--junitxml "), tmp_path)


def test_readme_begins_and_ends_with_commands_of_ci() -> None:
    first, *_, last = blocks((PROJECT / "README.md").read_text(encoding="utf-8"))
    assert [first.code.strip(), last.code.strip()] == [
        "pip install . && ckptkit demo",
        "pip install '.[test]' && pytest",
    ]
    assert "readme_command pytest" in (PROJECT / ".ci/run").read_text()
    assert "readme_command demo" in (PROJECT / ".ci/run").read_text()


@pytest.mark.parametrize(("english", "chinese"), TRANSLATED.items())
def test_chinese_document_matches_code_and_sections(english: str, chinese: str) -> None:
    original = (PROJECT / english).read_text(encoding="utf-8")
    translation = (PROJECT / chinese).read_text(encoding="utf-8")
    assert blocks(translation) == blocks(original)
    headings = re.compile(r"^(#+) ", flags=re.MULTILINE)
    assert headings.findall(translation) == headings.findall(original)
    rows = re.compile(r"^\|", flags=re.MULTILINE)
    assert len(rows.findall(translation)) == len(rows.findall(original))


def anchors(page: Path) -> set[str]:
    """What GitHub makes of the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_every_file_of_the_package_that_a_page_names_exists(page: str) -> None:
    package = PROJECT / "ckptkit"
    last, missing = package, []
    for name in re.findall(r"`(?:ckptkit/)?([\w/]+\.py)`", (PROJECT / page).read_text(encoding="utf-8")):
        found = [base / name for base in (package, last, PROJECT) if (base / name).exists()]
        missing += [] if found else [name]
        last = found[0].parent if found else last
    assert not missing


def test_every_link_leads_to_a_file_and_a_heading() -> None:
    chinese = [PROJECT / "README.zh-CN.md", PROJECT / "examples/README.zh-CN.md", *(PROJECT / "docs/zh").glob("*.md")]
    found = 0
    for page in [*ENGLISH, *chinese, PROJECT / "CHANGELOG.md"]:
        links = re.findall(r"\]\(([^)#:]*)(?:#([^)]+))?\)", page.read_text(encoding="utf-8"))
        found += len(links)
        for target, section in links:
            there = page.parent / target if target else page
            assert there.exists(), f"{page.name} links to {target}"
            assert not section or section in anchors(there), f"{page.name}: {target}#{section}"
    assert found > 100


@pytest.mark.parametrize("readme", ["README.md", "README.zh-CN.md"])
def test_every_page_is_reached_from_the_readme(readme: str) -> None:
    pages = PROJECT / ("docs/zh" if "zh" in readme else "docs")
    linked = set(re.findall(r"\]\((docs/[^)#]+)\)", (PROJECT / readme).read_text(encoding="utf-8")))
    assert {str(page.relative_to(PROJECT)) for page in pages.glob("*.md")} <= linked


def promises(page: str) -> list[str]:
    """The first cell of each row of a page's tables, without their heads."""
    tables = re.findall(
        r"^\|.*\n\|[-|]+\n((?:\|.*\n)+)", (PROJECT / page).read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    return [row.split("|")[1].strip() for table in tables for row in table.splitlines()]


def test_default_suite_has_a_test_of_every_promise(request: pytest.FixtureRequest) -> None:
    promised = promises("docs/guarantees.md")
    assert len(promised) > 50
    assert not [promise for promise in promised if len(promise.split()) > 18]
    assert len(promises("docs/zh/guarantees.md")) == len(promised)
    tests_of = json.loads((PROJECT / "docs/guarantees.json").read_text(encoding="utf-8"))
    assert list(tests_of) == promised
    every = sorted({test for tests in tests_of.values() for test in tests})
    assert_exist(every)
    by_default = names(one.nodeid for one in request.session.items if one.get_closest_marker("extended") is None)
    if any(by_default.isdisjoint(tests) for tests in tests_of.values()):  # not the whole suite is run
        listed = run([sys.executable, "-m", "pytest", "--collect-only", "-q", "-n", "0", *every], PROJECT)
        by_default = names(listed.splitlines())
    for promise, tests in tests_of.items():
        assert not by_default.isdisjoint(tests), f"only -m full runs the tests of: {promise}"


def named_tests(page: str) -> list[list[str]]:
    """The tests that each row of a page names."""
    rows = re.findall(r"^\|(?! ?-)(.*)\|$", (PROJECT / page).read_text(encoding="utf-8"), flags=re.MULTILINE)
    named = [re.findall(r"`(tests/[\w/]+\.py(?:::\w+)?)`", row) for row in rows]
    return [tests for tests in named if tests]


def assert_exist(tests: Iterable[str]) -> None:
    for test in tests:
        path, _, name = test.partition("::")
        assert re.search(rf"^ *(def|class) {name}\b" if name else "", (PROJECT / path).read_text(), re.MULTILINE), test


def test_tests_that_tried_a_migration_exist() -> None:
    rows = named_tests("docs/migration.md")
    assert len(rows) > 25
    assert named_tests("docs/zh/migration.md") == rows
    assert_exist({test for tests in rows for test in tests})


def names(cases: Iterable[str]) -> set[str]:
    """The test functions that have cases, their classes and files."""
    parts = [case.partition("[")[0].split("::") for case in cases]
    return {"::".join(part[:length]) for part in parts for length in (1, 2, 3)}


def test_the_tutorial_changes_fewer_than_ten_lines() -> None:
    (change,) = (block for block in blocks((PROJECT / "docs/tutorial.md").read_text()) if block.language == "diff")
    assert len(change.code.splitlines()) < 10


PRINTS = "```python once=x.py\nprint(1)\n```\n\n"


@pytest.mark.parametrize(
    "text",
    [
        "```python\nraise SystemExit(1)\n```\n",
        "```bash\nrm -rf build\n```\n",
        "```bash\nexport PATH=here\nckptkit ls x\n```\n",
        "```bash after=nowhere.py\nckptkit ls x\n```\n",
        "```sh\nckptkit ls x\n```\n",
        "```text like=x.py\nshown\n```\n",
        "```json of=x.py\n{}\n```\n",
        "```python killed=x.py\nprint(1)\n```\n",
        PRINTS + "```text first=x.py\nsomething else\n```\n",
        PRINTS + "```text again=x.py\n1\n```\n",
        PRINTS + "```python once=y.py\nprint(2)\n```\n\n```diff x.py y.py\n+print(2)\n```\n",
    ],
)
def test_a_wrong_or_uncovered_block_is_noticed(text: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        run_document(text, tmp_path)


def test_shown_lines_match_output_except_numbers() -> None:
    """Folders may differ, too."""
    assert_printed("saved 3 files in 0.5 s at /home/you/runs", "begin\nsaved 12 files in 1 s at /tmp/x/runs\n")
    assert_printed("saved ... files", "saved some files\n")
    for line in ("saved 3 folders", "saved 3 files more", "saved ... folders"):
        with pytest.raises(AssertionError):
            assert_printed(line, "saved 3 files\n")
