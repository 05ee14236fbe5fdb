"""Programs whose variables are captured in one run of theirs and put back in another. Needs Python alone.

``frame_programs.py DIRECTORY resumed`` runs each for 40 steps and keeps what it noted, and its variables after step 17
as JSON. Then it runs each from its beginning, puts these back when the first batch is asked for, and prints what is
noted otherwise. ``stress`` repeats writes. DIRECTORY holds the modules under test.
"""

import collections
import gc
import json
import re
import sys
import textwrap
import threading
import types
import weakref

sys.path.insert(0, sys.argv[1])
from frame_variables import set_variables
from liveness import code_names, live_names

SAVED, LAST, WARM = 17, 40, 2_000
START = "best, ema, patience, factor = 99.0, 0.0, 0, [1.0]"
STEP = """
patience = 0 if batch < best else patience + 1
best = min(best, batch)
ema = 0.9 * ema + 0.1 * batch * factor[0]
factor = [factor[0] * 1.01]
note(best, ema, patience, factor)
"""
SHARED = "nonlocal best, ema, patience, factor"
# ruff: noqa: E501 a program is easier to read if it is not cut
PROGRAMS = {
    "module": "START\nfor batch in batches:\n    STEP",
    "module while": "START\nwhile (batch := next(batches, None)) is not None:\n    STEP",
    "module called": "START\ndef run(batch):\n    global best, ema, patience, factor\n    STEP\nfor batch in batches:\n    run(batch)",
    "module comprehension": "START\ndef run(batch):\n    global best, ema, patience, factor\n    STEP\ndone = [run(batch) for batch in batches]",
    "module globals": "START\ndef train():\n    global best, ema, patience, factor\n    for batch in batches:\n        STEP\ntrain()",
    "lambda": "def run(batch, state=[99.0, 0.0, 0, [1.0]]):\n    best, ema, patience, factor = state\n    STEP\n    return [best, ema, patience, factor]\ndef train(state=None):\n    act = lambda batch, old: run(batch, old)\n    state = [99.0, 0.0, 0, [1.0]]\n    for batch in batches:\n        state = act(batch, state)\ntrain()",
    "lambda default": "train = lambda state=(99.0, 0), kept=note: [state := (min(batch, state[0]), state[1] + batch) for batch in batches if kept(*state) or True]\ntrain()",
    "eval": "total = 0\neval('[(total := total + batch, note(total)) for batch in batches]')",
    "method": "class Trainer:\n    def fit(self, *, rate=1):\n        START\n        for batch in batches:\n            batch *= rate\n            rate += 1\n            STEP\nTrainer().fit()",
    "recursion": "def train(depth, best, ema, patience, factor):\n    if depth:\n        level = train(depth - 1, best, ema, patience, factor)\n        return level + depth\n    for batch in batches:\n        STEP\n    return 0\nnote(train(5, 99.0, 0.0, 0, [1.0]))",
    "global switch": "scale = 1\ndef train():\n    global scale\n    START\n    for batch in batches:\n        batch *= scale\n        scale += 1\n        STEP\ntrain()",
    "async": "import asyncio\nasync def stream():\n    sent = 0\n    for batch in batches:\n        sent += 1\n        yield batch + sent\nasync def train():\n    START\n    async for batch in stream():\n        STEP\n        await asyncio.sleep(0)\nasyncio.run(train())",
    "coroutine": "async def get():\n    return next(batches, None)\nasync def train():\n    START\n    while (batch := await get()) is not None:\n        STEP\ntry:\n    train().send(None)\nexcept StopIteration:\n    pass",
    "generator": "def wrapped():\n    count = 0\n    for batch in batches:\n        count += 1\n        yield batch * count\ndef train():\n    START\n    for batch in wrapped():\n        STEP\ntrain()",
    "yield from": "def steps():\n    START\n    for batch in batches:\n        STEP\n        yield best\ndef outer():\n    yield from steps()\nlist(outer())",
}
IN_FUNCTION = {  # in a function, after START
    "for": "for batch in batches:\n    STEP",
    "while": "batch = next(batches, None)\nwhile batch is not None:\n    STEP\n    batch = next(batches, None)",
    "nested": "epoch, left = 0, 5\nwhile epoch < 9999:\n    while left:\n        batch = next(batches, None)\n        if batch is None:\n            return\n        batch += epoch\n        left -= 1\n        STEP\n    left = 5\n    epoch += 1",
    "map and filter": "for batch in map(lambda b: b * patience, filter(lambda b: b > -best, batches)):\n    STEP",
    "genexpr": "for batch in (batch + 1 for batch in batches):\n    STEP",
    "comprehension": f"def run(batch):\n    {SHARED}\n    STEP\n    return best\nx = 7\n[run(x) for x in batches]\nnote(x)",
    "dict comprehension": f"def run(batch):\n    {SHARED}\n    STEP\n{{run(b): (lambda: b) for b in batches}}",
    "nonlocal": f"def run(batch):\n    {SHARED}\n    STEP\nfor batch in batches:\n    run(batch)",
    "free": f"def train():\n    {SHARED}\n    for batch in batches:\n        STEP\ntrain()\nnote(best, ema)",
    "read by lambda": "show = lambda: (best, ema)\nfor batch in batches:\n    STEP\n    note(show())",
    "try": "error = None\nfor batch in batches:\n    try:\n        if batch > 50:\n            raise ValueError(batch)\n    except ValueError as error:\n        batch = -best\n    finally:\n        patience += 1\n    STEP",
    "retry": "epoch = 0\nwhile True:\n    try:\n        batch = next(batches)\n    except StopIteration:\n        break\n    try:\n        [][int(batch)]\n    except IndexError:\n        epoch += 1\n        batch += epoch\n    STEP",
    "with": "import contextlib, io\nwith contextlib.redirect_stderr(io.StringIO()) as text:\n    for batch in batches:\n        with contextlib.suppress(ZeroDivisionError):\n            STEP",
    "deleted": "spare = 1\ndel spare\nfor batch in batches:\n    mine = batch\n    STEP\n    del mine\n    note('mine' in locals(), 'spare' in locals())",
    "unbound at first": "for batch in batches:\n    if batch < 0.5:\n        lowest = batch + patience\n    STEP\n    try:\n        note(lowest)\n    except UnboundLocalError:\n        note('unbound')",
    "match": "for batch in batches:\n    match [patience, batch]:\n        case [0, value]:\n            batch = value * 2\n        case [_, value] if value > 40:\n            batch = value / 2\n    STEP",
    "star": "def train(best, *ema, patience=0, **factor):\n    ema, factor = ema[0], factor['factor']\n    for batch in batches:\n        STEP\ntrain(best, ema, factor=factor)",
    "locals": "seen = locals()\nseen['added'] = 1\nfor batch in batches:\n    STEP\n    note(locals()['best'])",
}
PROGRAMS |= {
    f"function: {name}": f"def train():\n    START\n{textwrap.indent(body, '    ')}\ntrain()"
    for name, body in IN_FUNCTION.items()
}


def whole_source(text):
    text = re.sub(r"(?m)^( *)STEP$", lambda match: textwrap.indent(STEP.strip("\n"), match[1]), text)
    return text.replace("START", START)


def program_frames(frame):
    while frame is not None:
        if frame.f_globals.get("__name__") == "program":
            yield frame
        frame = frame.f_back


def namespace_of(frame):
    """Return the variables; also where a comprehension runs in the frame of its module."""
    return {**(frame.f_globals if frame.f_code.co_name == "<module>" else {}), **frame.f_locals}


def is_plain(value):
    if isinstance(value, (list, tuple)):
        return all(map(is_plain, value))
    return isinstance(value, (type(None), bool, int, float, str))


def captured(frame):
    """Return, by frame, the plain variables that its continuation reads."""
    frames = [*program_frames(frame)]
    functions = [v for v in frames[-1].f_globals.values() if isinstance(v, types.FunctionType)]
    elsewhere = frozenset().union(*(code_names(function.__code__)[0] for function in functions))
    everything = []
    for each in frames:
        names = live_names(each)
        if each is frames[-1]:
            names |= elsewhere.union(*(code_names(frame.f_code)[0] for frame in frames))
        own = namespace_of(each)
        everything.append({n: own[n] for n in sorted(names & own.keys()) if n[:2] != "__" and is_plain(own[n])})
    return everything


def put_back(frame, everything):
    frames = [*program_frames(frame)]
    assert len(frames) == len(everything)
    now = [{name: namespace_of(each).get(name) for name in values} for each, values in zip(frames, everything)]  # noqa: B905
    assert now != everything
    for each, values in zip(frames, everything):  # noqa: B905
        before = {name: id(value) for name, value in namespace_of(each).items() if name not in values}
        set_variables(each, values)
        after = namespace_of(each)
        assert before == {name: id(value) for name, value in after.items() if name not in values}
        assert all(after[name] is value for name, value in values.items())


class Batches:
    """Hands out batches `first` to LAST. Calls `act` with the frame of the call before the first, if given."""

    def __init__(self, first, act, at, warm):
        self.number, self.act, self.at, self.warm = first - 1, act, at, warm

    def __iter__(self):
        return self

    def __next__(self):
        if self.warm:
            self.warm -= 1
            return 1.0
        if self.number == self.at:
            self.at = None
            self.act(sys._getframe(1))
        if self.number >= LAST:
            raise StopIteration
        self.number += 1
        return self.number * 37 % 101 + 0.25


def ran(name, batches):
    """Run a program and return what it noted at each batch."""
    notes = collections.defaultdict(list)
    text = compile(whole_source(PROGRAMS[name]), name, "exec")
    note = lambda *values: None if batches.warm else notes[batches.number].append(json.dumps(values))  # noqa: E731
    for_program = (batch for batch in batches) if batches.is_generator else batches
    exec(text, {"__name__": "program", "batches": for_program, "note": note})  # noqa: S102
    return [notes[number] for number in range(SAVED + 1, LAST + 1)]


def reading(frame, event, arg):
    """Read all variables below at each instruction, as a debugger may."""
    frame.f_trace_opcodes = "frame_variables" in frame.f_code.co_filename
    while frame is not None:
        assert frame.f_locals is not None
        frame = frame.f_back
    return reading


def main_resumed():
    trials = 0
    for name in PROGRAMS:
        captures = []
        batches = Batches(1, lambda frame: captures.append(json.dumps(captured(frame))), SAVED, 0)  # noqa: B023
        batches.is_generator = False
        noted = ran(name, batches)
        for is_generator in (False, True):
            for warm, traced in ((0, None), (WARM, None), (0, sys.settrace), (0, sys.setprofile)):
                saved = json.loads(captures[0])
                batches = Batches(SAVED + 1, lambda frame: put_back(frame, saved), SAVED, warm)  # noqa: B023
                batches.is_generator = is_generator
                if traced:
                    traced(reading)
                try:
                    notes = ran(name, batches)
                finally:
                    if traced:
                        traced(None)
                trials += 1
                if notes != noted:
                    print("differs:", name, is_generator, warm, traced, saved)
    print(trials, "trials of", len(PROGRAMS), "programs")


class Value:
    pass


def main_stress():
    """Set variables very often, while a thread reads them; then all references are gone."""

    def loop(count, batches):
        best, cell, unset, added, kept = None, None, 0, 0, object()
        show = lambda: cell  # noqa: E731
        del unset
        for value in batches:
            assert best is value is cell is show()
            added += 1
        return added, best, "unset" in locals(), kept

    def batches(count, alive):
        for _ in range(count):
            value = Value()
            alive.append(weakref.ref(value))
            set_variables(sys._getframe(1), {"best": value, "cell": value})
            yield value

    stopped, main = threading.Event(), threading.get_ident()

    def read():
        while not stopped.is_set():
            frame = sys._current_frames()[main]
            while frame is not None:
                _, frame = frame.f_locals, frame.f_back

    gc.disable()
    alive = []
    assert loop(1000, batches(1000, alive))[0] == 1000
    assert not any(reference() for reference in alive)
    value = Value()
    references = sys.getrefcount(value)

    def again(best):
        for _ in range(1000):
            setting(value)
        return best

    def setting(value):
        set_variables(sys._getframe(1), {"best": value})

    assert again(None) is value
    assert sys.getrefcount(value) == references
    sys.setswitchinterval(1e-5)
    threading.Thread(target=read).start()
    added = loop(100_000, batches(100_000, collections.deque(maxlen=10)))[0]
    stopped.set()
    print(added, "writes")


if __name__ == "__main__":
    {"resumed": main_resumed, "stress": main_stress}[sys.argv[2]]()
