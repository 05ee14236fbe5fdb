import json
import pathlib
import subprocess
import sys

import pytest

from ckptkit.mindspore.observe import liveness
from ckptkit.mindspore.observe.liveness import code_names
from tests.unit.mindspore.observe.test_frame_variables import INTERPRETERS

# Prints what is live at the first `here` of each source, of the variables, which have one letter.
RUNNER = """
import json, sys
sys.path.insert(0, sys.argv[1])
import liveness
def told(name, options):
    def here(*_):
        frame = sys._getframe(1)
        names = liveness.live_names(frame)
        if options == "operands":
            names = liveness.operand_names(frame)
        results.setdefault(name, "".join(sorted(n for n in names if len(n) == 1 and n in {**frame.f_globals, **frame.f_locals})))
    return here
results = {}
for name, source, options, _ in json.load(sys.stdin):
    exec(source, {"here": told(name, options), "two": range(2)})
print(json.dumps(results))
"""


def function(body):
    return "def f(a=0, b=0, c=0, d=0):\n" + "\n".join("    " + line for line in body.split("\n")) + "\nf()"


# ruff: noqa: E501 a source is easier to read if it is not cut
TABLE = [  # name, source, what is asked, what is live
    ("read before written", function("for _ in two:\n    here()\n    a = 1\n    b += a"), "", "b"),
    ("read outside of loops", function("for _ in two:\n    here()\n    a = 1\nstr(c)"), "", "c"),
    ("before the loop", function("here()\na = 1\nfor _ in two:\n    b += a"), "", "b"),
    ("behind all loops", function("for _ in two:\n    a += 1\nhere()\na + b"), "", "ab"),
    ("one branch", function("for _ in two:\n    here()\n    if c:\n        a = 1\n    b = a"), "", "ac"),
    ("both branches", function("for _ in two:\n    here()\n    a = 1 if c else 2\n    b = a"), "", "c"),
    ("while", function("while a < 2:\n    here()\n    a += 1\n    b = a\n    c = b"), "", "a"),
    ("pairs", function("for _ in two:\n    here()\n    a, b = b, a\n    c = d = 1"), "", "ab"),
    ("deleted", function("for _ in two:\n    here()\n    a = 1\n    del a"), "", ""),
    ("walrus", function("for _ in two:\n    here()\n    if (a := b) and a:\n        pass"), "", "b"),
    ("on the value stack", function("for _ in two:\n    a = a + (here() or b)"), "", "ab"),
    ("read by an operand", function("for _ in two:\n    a = c\n    a += here() or 1"), "operands", "a"),
    ("not the statement before", function("for _ in two:\n    a = b + c\n    here()"), "operands", ""),
    ("a handler that goes on", function("for _ in two:\n    try:\n        here()\n        [][1]\n    except IndexError:\n        a += 1"), "", "a"),
    ("a handler that ends", function("for _ in two:\n    try:\n        here()\n    except IndexError:\n        return a"), "", "a"),
    ("a handler around a with statement", function("from contextlib import nullcontext as n\nfor _ in two:\n    try:\n        with n():\n            here()\n            [][1]\n    except IndexError:\n        a += 1"), "", "an"),
    ("a with statement does not swallow", function("from contextlib import nullcontext as n\nfor _ in two:\n    with n():\n        here()\n        a = 1\n    b = a"), "", "n"),
    ("finally", function("for _ in two:\n    try:\n        here()\n    finally:\n        a += 1"), "", "a"),
    ("comprehension", function("for _ in two:\n    here()\n    b = [x + c for x in two]"), "", "c"),
    ("lambda", function("for _ in two:\n    here()\n    (lambda: a)()\n    b = 1"), "", "a"),
    ("read by a call", function("h = lambda: a\nfor _ in two:\n    b = 1\n    here()\n    h()\n    a = b"), "", "abh"),
    ("match", function("for _ in two:\n    here()\n    match a:\n        case [b]:\n            pass"), "", "a"),
    ("nonlocal", function("def k():\n    nonlocal a\n    for _ in two:\n        here()\n        a += 1\nk()"), "", "a"),
    ("module", "a = b = 0\nfor _ in two:\n    here()\n    a = 1\n    b += a", "", "b"),
    ("module, read elsewhere", "a = g = 0\ndef f():\n    return g\nfor _ in two:\n    here()\n    str()\n    g = 1", "", "g"),
    ("class", "class C:\n    a = b = 0\n    for _ in two:\n        here()\n        a = b\n        b = 1", "", "b"),
    ("generator", "def f(a):\n    while True:\n        yield here()\n        a += 1\nnext(f(0))", "", "a"),
    ("coroutine", "import asyncio\nasync def f(a, b):\n    for _ in two:\n        here()\n        await asyncio.sleep(0)\n        a += 1\n        b = a\nasyncio.run(f(0, 0))", "", "a"),
]  # fmt: skip


@pytest.mark.parametrize("python", INTERPRETERS)
def test_what_is_live(python):
    modules = pathlib.Path(liveness.__file__).parent
    done = subprocess.run(
        [python, "-c", RUNNER, modules], input=json.dumps(TABLE), capture_output=True, text=True, check=False
    )
    assert not done.stderr
    assert json.loads(done.stdout) == {name: expected for name, _, _, expected in TABLE}


def test_names_of_code_and_of_what_lies_within_it():
    def outer():
        json.dumps  # noqa: B018
        return [lambda: sys.path for _ in range(2)]

    names, attributes = code_names(outer.__code__)
    assert names == {"json", "sys", "range"}
    assert attributes == {"dumps", "path"}
