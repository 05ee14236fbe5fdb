"""A program that is forked ends, speaks and finds itself as in an interpreter of its own."""

import signal
import subprocess

import pytest
from support.process import ALWAYS_FRESH, forked, python, run_python

TELLS = """
import os, sys
print(__name__, sys.argv, sys.modules["__main__"].__dict__ is globals(), "mindspore" in sys.modules)
print(os.environ["WORD"], os.getcwd(), sys.stdin.read(), file=sys.stderr)
sys.exit(3)
"""


@pytest.mark.parametrize("way", [forked, python])
def test_code_is_the_main_module(way, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    also = {} if way is forked else {"stdin": subprocess.DEVNULL}
    done = way("-c", TELLS, "one", 2, expect=3, environment={"WORD": "é"}, **also)
    assert done.stdout == "__main__ ['-c', 'one', '2'] True False\n"
    assert done.stderr == f"é {tmp_path} \n"


def test_script_and_module_are_run_each_in_a_process_of_its_own(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import sys\nprint(sys.argv[1:], __file__)")
    assert forked(script, "x").stdout == f"['x'] {script}\n"
    assert "usage" in forked("-m", "json.tool", "--help").stdout
    changes = "import sys; print(sys.modules.setdefault('changed', 0)); sys.modules['changed'] = 1"
    assert [forked("-c", changes).stdout for _ in range(2)] == ["0\n", "0\n"]


def test_process_elsewhere_has_other_hashes_and_addresses(tmp_path):
    """As a restart has them; what a job keeps by them is lost."""
    tells = "print(hash('text'), id(object))"
    ended = [
        run_python("-c", tells, folder=tmp_path, environment={"PYTHONHASHSEED": "random"}, elsewhere=elsewhere).stdout
        for elsewhere in (False, False, True)
    ]
    same, again, elsewhere = [one.split() for one in ended]
    assert len(same) == 2
    assert same == again or ALWAYS_FRESH.is_set()
    assert same[0] != elsewhere[0]
    assert same[1] != elsewhere[1]


def test_it_ends_as_an_interpreter_does():
    for code, expect, said in [
        ("raise KeyError('gone')", 1, "KeyError: 'gone'"),
        ("import atexit, os; atexit.register(os.write, 2, b'at the end'); 1 / 0", 1, "at the end"),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL, ""),
    ]:
        done = forked("-c", code, expect=expect)
        assert said in done.stderr
        assert "warm_server" not in done.stderr
    with pytest.raises(AssertionError, match=r"(?s)exit code 1\n.*NameError"):
        forked("-c", "print('heard'); unknown")
