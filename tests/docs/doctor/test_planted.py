"""The doctor finds planted defects and names what is lost, and calls no sound job inexact.

The first line of each script in `benchmarks/corpus/planted` is its truth: ``exact``,
or the code and the place of the diagnosis.
"""

from pathlib import Path

import pytest

from docs.doctor.test_doctor import doctor

PLANTED = Path(__file__).parents[3] / "benchmarks/corpus/planted"
SCRIPTS = sorted(path.stem for path in PLANTED.glob("[pq]*.py"))


@pytest.mark.extended
@pytest.mark.parametrize("name", SCRIPTS)
def test_verdict_is_the_truth_and_names_the_cause(tmp_path: Path, name: str) -> None:
    script = PLANTED / f"{name}.py"
    truth = script.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
    work = tmp_path / "work"
    work.mkdir()
    _, report, said = doctor(work, str(script), "--kills", "2", ROOT=str(tmp_path / "run"))
    diagnosis = report["diagnosis"]
    verdict = "exact" if report["exact"] else f"{diagnosis['code']}: {diagnosis['where']}"
    assert verdict == truth, (diagnosis, said)
