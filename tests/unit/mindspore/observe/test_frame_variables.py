import pathlib
import shutil
import subprocess
import sys

import pytest

from ckptkit.mindspore.observe import frame_variables
from ckptkit.mindspore.observe.frame_variables import set_variables

PROGRAMS = pathlib.Path(__file__).with_name("frame_programs.py")


def runs(python):
    """Say whether this interpreter can start: a version manager leaves commands on PATH that cannot."""
    return shutil.which(python) and subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0


INTERPRETERS = [sys.executable, *filter(runs, ("python3.10", "python3.12"))]


def output(python, what):
    modules = pathlib.Path(frame_variables.__file__).parent  # imported by file: other interpreters have no MindSpore
    done = subprocess.run([python, PROGRAMS, modules, what], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    assert "Error" not in done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("python", INTERPRETERS)
def test_programs_whose_variables_are_put_back_go_on_as_if_they_had_not_stopped(python):
    assert output(python, "resumed") == ["264 trials of 33 programs"]


@pytest.mark.parametrize("python", INTERPRETERS)
def test_100_000_writes_keep_no_reference_while_a_thread_reads_the_frames(python):
    assert output(python, "stress") == ["100000 writes"]


def put(**values):
    set_variables(sys._getframe(1), values)


def test_an_unknown_name_is_refused_and_nothing_is_set():
    """Nor has a module variables that it does not name."""
    value, namespace = 1, {"put": put}
    with pytest.raises(KeyError, match="has no variable missing"):
        put(value=2, missing=3)
    assert value == 1
    exec("value = 1\nput(value=2)", namespace)  # noqa: S102
    assert namespace["value"] == 2
    with pytest.raises(KeyError, match="<module> has no variable missing"):
        exec("put(missing=1)", namespace)  # noqa: S102
    assert "missing" not in namespace


def test_what_a_statement_has_read_already_is_not_changed():
    total = 1
    total += put(total=10) or 5
    assert total == 6


def test_a_dict_of_locals_keeps_what_the_function_put_into_it():
    value, seen = 1, locals()
    seen["added"] = 2
    put(value=3)
    assert (value, seen["added"], locals()["value"]) == (3, 2, 3)


def test_variables_of_a_generator_that_waits_are_set():
    def counting():
        count = 0
        while True:
            yield count
            count += 1

    generator = counting()
    next(generator)
    set_variables(generator.gi_frame, {"count": 7})
    assert next(generator) == 8


def test_a_finalizer_runs_when_all_variables_are_set():
    class Old:
        def __del__(self):
            caller = sys._getframe()
            while caller.f_code is not test_a_finalizer_runs_when_all_variables_are_set.__code__:
                caller = caller.f_back
            seen.append((caller.f_locals["first"], caller.f_locals["second"]))

    seen = []
    first, second = Old(), 0
    put(first=1, second=2)
    assert seen == [(1, 2)]
    assert (first, second) == (1, 2)
