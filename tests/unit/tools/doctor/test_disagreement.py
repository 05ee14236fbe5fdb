"""Which lives are run to find why two differ, and what is made of them; lives and records are made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.doctor_lives import life, stepped

from ckptkit.manager.hooks import Recorded, Suspect
from ckptkit.tools.doctor.compare import first_difference
from ckptkit.tools.doctor.diagnose import Diagnosis
from ckptkit.tools.doctor.disagreement import Disagreement, Recording
from ckptkit.tools.doctor.lives.record import Record

GUESS = Diagnosis("not-reproducible", "loss", "guessed", "look for it")
LAST = 6


class Job:
    """A job whose operator gives another output in each life, from micro-step 4 on.

    Args:
        folder: Gets records.
        equal_with: Settings that make its lives equal.
        kind: Kind of what it calls.
        equal_lives: So many lives are equal before one differs.
        made: Files that the very first life made in its second micro-step.
    """

    def __init__(self, folder: Path, *, equal_with=(), kind="operator", equal_lives=1, suspects=(), made=()):
        self.started: list[tuple[int, Recording]] = []
        self._folder, self._equal_with, self._kind, self._equal = folder, equal_with, kind, equal_lives
        self._suspects, self._made = suspects, made

    def start(self, words: str, stop: int, recording: Recording):
        self.started.append((stop, recording))
        number = 0 if len(self.started) <= self._equal else len(self.started)
        if not {*self._equal_with}.isdisjoint(recording.settings):
            number = 0
        if recording.file is not None:
            self._record(Record(recording.file), number, recording)
        lines = [stepped(step, loss=f"{number}", weights=f"{number}") for step in range(4, stop + 1)]
        return life([*map(stepped, range(1, 4)), *lines])

    def _record(self, record, number, recording):
        kind = self._kind if "pynative" not in recording.settings else "operator"
        where = "net (Net)" if kind == "graph" else "operator Sum"
        for step in range(LAST + 1):
            if step:
                output = str(number) if step >= 4 else "same"
                record.write(Recorded(event="call", kind=kind, where=where, line="net.py:5", values={"x": "1"}))
                record.write(Recorded(event="return", kind=kind, where=where, values={"output": output}))
            record.write(Recorded(event="step", where=str(step)))

    def diagnosed(self, guess=GUESS):
        lives = [life([stepped(1), stepped(2, weights=name)], suspects=self._suspects) for name in "ab"]
        lives[0].steps[2] = lives[0].steps[2].model_copy(update={"made": self._made})
        difference = first_difference(lives[1], lives[0], 2)
        return Disagreement(difference, guess, self._folder, LAST, self.start, first_difference).diagnosis()


def test_setting_with_which_lives_agree_is_recommended(tmp_path):
    job = Job(tmp_path, equal_with=("one thread",))
    found = job.diagnosed()
    assert (found.code, found.where) == ("nondeterministic-operator", "operator Sum")
    assert "operator Sum gets equal inputs and gives another output" in found.cause
    assert "micro-step 4" in found.cause
    assert "runtime_num_threads=1" in found.fix
    assert "two runs agreed" in found.fix
    tried = [one.settings for _, one in job.started[2:]]
    assert tried == [("deterministic",), ("deterministic",), ("one thread",), ("one thread",)]


def test_settings_that_do_not_help_are_not_recommended(tmp_path):
    found = Job(tmp_path).diagnosed()
    assert "It does not help to" in found.fix
    assert "agreed" not in found.fix


def test_graph_is_looked_into_in_pynative_mode(tmp_path):
    job = Job(tmp_path, kind="graph")
    found = job.diagnosed()
    assert found.where == "operator Sum"
    assert "PYNATIVE" in found.cause
    assert [one.settings for _, one in job.started[:4]] == [(), (), ("pynative",), ("pynative",)]


def test_graph_that_agrees_in_pynative_mode_is_named_itself(tmp_path):
    found = Job(tmp_path, kind="graph", equal_with=("pynative",)).diagnosed()
    assert found.where == "net (Net)"
    assert "In PYNATIVE mode, two runs agree" in found.cause


@pytest.mark.parametrize("kind", ["graph", "update"])
def test_finding_explains_what_cannot_be_looked_into(tmp_path, kind):
    """As nn.Dropout in a graph of MindFormers, of which a run by chance agreed with a setting."""
    guess = Diagnosis("random-operator", "net.drop (nn.Dropout)", "it draws", "use another one")
    job = Job(tmp_path, kind=kind, equal_with=("pynative", "deterministic"))
    assert job.diagnosed(guess) == guess
    assert not any("deterministic" in one.settings for _, one in job.started)


def test_rare_difference_is_waited_for(tmp_path):
    job = Job(tmp_path, equal_lives=3)
    assert job.diagnosed().where == "operator Sum"
    assert [one.file is not None for _, one in job.started[:4]] == [True] * 4


def test_guess_stands_if_recorded_lives_agree(tmp_path):
    job = Job(tmp_path, equal_lives=99)
    assert job.diagnosed() == GUESS
    assert len(job.started) == 4


def test_file_of_the_first_life_is_named_if_all_later_lives_agree(tmp_path):
    """They find what it has made; if they differ from each other, it is something else."""
    made = ("/runs/mine.cleared", "/runs/log")
    found = Job(tmp_path, equal_lives=99, made=made).diagnosed()
    assert (found.code, found.where, found.also) == ("forgotten-state", made[0], made[1:])
    assert "from micro-step 2 on" in found.cause
    assert Job(tmp_path, made=made).diagnosed().where == "operator Sum"


@pytest.mark.parametrize("kind", ["operator", "random operator"])
def test_finding_of_the_same_place_gives_the_fix(tmp_path, kind):
    """A finding of another place does not."""
    suspects = (Suspect(kind="operator", where="operator Sum: ops.sum in f()", why="it draws", fix="do not"),)
    found = Job(tmp_path, kind=kind, suspects=suspects).diagnosed()
    if kind == "operator":
        assert found.code == "nondeterministic-operator"
    else:
        assert (found.code, found.fix) == ("random-operator", "do not")
