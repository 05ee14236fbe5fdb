"""Code has the name that Python 3.11 gives it, also under Python 3.10."""

from __future__ import annotations

import functools
import random
import statistics
import sys

import pytest

from ckptkit.mindspore.inspect.recording.qualified import name_in_source, qualified_name


def outer(depth):
    def inner():
        return sys._getframe()

    class Kind:
        @functools.wraps(inner)
        def method(self):
            return sys._getframe()

        @staticmethod
        def deeper():
            return next(map(lambda _: sys._getframe(), "1"))  # noqa: C417 - a lambda is meant

    frames = {
        "inner": inner,
        "Kind.method": Kind().method,
        "Kind.deeper.<locals>.<lambda>": Kind.deeper,
        "<genexpr>": lambda: next(sys._getframe() for _ in range(1)),
    }
    return frames[depth]()


@pytest.mark.parametrize("inner", ["inner", "Kind.method", "Kind.deeper.<locals>.<lambda>"])
def test_code_is_named_with_what_is_around_it(inner):
    frame = outer(inner)
    assert qualified_name(frame) == name_in_source(frame.f_code, frame.f_globals) == f"outer.<locals>.{inner}"


def test_generator_in_a_lambda_is_named():
    frame = outer("<genexpr>")
    assert name_in_source(frame.f_code, frame.f_globals) == "outer.<locals>.<lambda>.<locals>.<genexpr>"


@pytest.mark.parametrize("kind", [random.Random, statistics.NormalDist, functools.partialmethod])
def test_source_gives_the_names_of_methods(kind):
    methods = [one for one in vars(kind).values() if hasattr(one, "__code__")]
    assert methods
    assert [name_in_source(one.__code__, one.__globals__) for one in methods] == [one.__qualname__ for one in methods]


def test_code_without_a_source_has_its_own_name():
    made = {}
    exec("class Made:\n    def method(self): pass", made)  # noqa: S102 - code that has no file
    assert name_in_source(made["Made"].method.__code__, made) == "method"
