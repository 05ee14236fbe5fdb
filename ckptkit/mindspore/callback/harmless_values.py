"""Lists what code of a callback may use without writing a parameter: kinds of values, their attributes, and functions.

Guarantees: an allow-list; whatever is not in it raises `NotProvenError`. Assumes that output (``sys.stdout``, handlers
of logs, open files) writes no parameter, that what a train cell returns consists of tensors and what an evaluation
returns of numbers. Any thread.
"""

from __future__ import annotations

import csv
import datetime
import io
import json
import logging
import math
import os
import sys
import time
import types
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import mindspore as ms
import numpy as np

# Kinds. A value has several if it may be one or another, and none while no assignment of it was read.
PLAIN = "a number or text"
CONTAINER = "a container"  # of Python's, with plain values, arrays, tensors and containers of them
ARRAY = "an array"  # maybe the memory of a parameter
FRESH = "a new array"  # in memory of its own, or a number of NumPy's
TENSOR = "a tensor"  # maybe a parameter
NEW_TENSOR = "a new tensor"  # in memory of its own
SELF = "the callback"
CONTEXT = "the run context"
PARAMS = "the arguments of the training"
OPTIMIZER = "the optimizer"
FILE = "a text file"
TABLE = "a writer of csv"
LOGGER = "a logger"
BAR = "a progress bar"
# May be computed with, compared, printed and kept.
READ = frozenset((PLAIN, CONTAINER, ARRAY, FRESH, TENSOR, NEW_TENSOR))
ANY = frozenset((PLAIN, CONTAINER, ARRAY, TENSOR))  # in a container
# Objects that write text, with their methods.
OUTPUT: Mapping[str, Sequence[str]] = {
    FILE: ("write", "writelines", "flush", "close"),
    TABLE: ("writerow", "writerows", "writeheader"),
    LOGGER: ("debug", "info", "warning", "error", "critical", "log", "exception"),
    BAR: ("update", "set_description", "set_postfix", "set_postfix_str", "close", "refresh", "write"),
}

_PLAIN = (int, float, str, bool, complex, bytes, type(None), datetime.datetime, datetime.date, datetime.timedelta)
_CONTAINERS = (list, tuple, dict, set, frozenset, deque)
_LARGEST = 20_000  # items of a value that are searched

_METHOD = "a method"
_SIZES = dict.fromkeys(("shape", "ndim", "size"), PLAIN)
_OF_TIMES = ("days", "seconds", "microseconds", "year", "month", "day", "hour", "minute", "second")
_ATTRIBUTES = {
    PLAIN: dict.fromkeys(_OF_TIMES, PLAIN),
    TENSOR: _SIZES,
    NEW_TENSOR: _SIZES,
    ARRAY: {**_SIZES, "T": ARRAY},
    FRESH: {**_SIZES, "T": FRESH},
}
_FOLDS = ("mean", "sum", "min", "max", "std", "var", "prod", "any", "all", "argmax", "argmin", "copy", "flatten")
_OF_ARRAYS = {
    **dict.fromkeys(("item", "tolist"), CONTAINER),
    **dict.fromkeys(_FOLDS, FRESH),
    **dict.fromkeys(("reshape", "ravel", "squeeze"), ARRAY),
}
_OF_TENSORS = {"asnumpy": ARRAY, "item": PLAIN, "tolist": CONTAINER, "mean": TENSOR, "sum": TENSOR}
_METHODS = {
    TENSOR: _OF_TENSORS,
    NEW_TENSOR: _OF_TENSORS,
    ARRAY: _OF_ARRAYS,
    FRESH: {name: FRESH if kind == ARRAY else kind for name, kind in _OF_ARRAYS.items()},
}
_TYPES: Mapping[str, Sequence[type]] = {
    PLAIN: _PLAIN,
    CONTAINER: _CONTAINERS,
    TENSOR: (ms.Tensor, ms.Parameter),
    NEW_TENSOR: (ms.Tensor,),
    ARRAY: (np.ndarray,),
    FRESH: (np.ndarray, np.generic),
}
_OF_CONTEXT = {"original_args": PARAMS, "request_stop": PLAIN, "get_stop_requested": PLAIN}
_OF_TRAINING = {
    **dict.fromkeys(("cur_step_num", "cur_epoch_num", "batch_num", "epoch_num", "device_number", "mode"), (PLAIN,)),
    **dict.fromkeys(("dataset_sink_mode", "last_save_ckpt_step", "latest_ckpt_file", "parallel_mode"), (PLAIN,)),
    "eval_results": (CONTAINER, PLAIN),
    **dict.fromkeys(("net_outputs", "train_dataset_element"), (TENSOR, CONTAINER)),
    "optimizer": (OPTIMIZER,),
}
_OF_OPTIMIZER = {"learning_rate": TENSOR, "global_step": TENSOR}

_OF_TYPES: Mapping[type, str] = {
    **dict.fromkeys((logging.Logger, logging.RootLogger), LOGGER),
    **dict.fromkeys((csv.DictWriter, type(csv.writer(io.StringIO()))), TABLE),
    io.TextIOWrapper: FILE,
}
_OF_BARS = ("n", "last_print_n", "initial", "total", "unit_scale")
_BARS = ("tqdm.std", "tqdm.asyncio", "tqdm.notebook")

# Functions that write to none of their arguments, by what they return.
_RETURNS: Mapping[frozenset[str], Sequence[Any]] = {
    frozenset((PLAIN,)): (
        *(float, int, str, bool, len, repr, hash, ord, chr, any, all, range),
        *(time.time, time.perf_counter, time.monotonic, time.process_time, time.time_ns, time.perf_counter_ns),
        *(time.strftime, time.localtime, time.gmtime, time.asctime, time.ctime, time.sleep, datetime.timedelta),
        *(os.getpid, os.makedirs, os.getenv, os.path.join, os.path.exists, os.path.basename, os.path.dirname),
        *(os.path.isfile, os.path.isdir, os.path.abspath, json.dumps),
        *(logging.debug, logging.info, logging.warning, logging.error, logging.critical),
        *(ms.log.debug, ms.log.info, ms.log.warning, ms.log.error, ms.log.critical),
        # The product of nothing is its argument.
        *(one for one in vars(math).values() if type(one) is types.BuiltinFunctionType and one is not math.prod),
    ),
    frozenset((CONTAINER,)): (list, tuple, dict, set, sorted, reversed, enumerate, zip, divmod),
    ANY: (min, max),
    frozenset((PLAIN, FRESH, ARRAY, TENSOR, CONTAINER)): (sum, abs, round),
    frozenset((FILE,)): (open,),
}
# Of NumPy, with one argument only: a second one may be what they write to.
_NEW = (
    *(np.mean, np.isnan, np.isfinite, np.isinf, np.abs, np.exp, np.log, np.sqrt, np.max, np.min, np.sum, np.std),
    *(np.median, np.array, np.any, np.all, np.square),
)
_SAME = (np.float32, np.float64, np.int32, np.int64, np.round)  # of an array of that type, it may be the array itself
# Names of arguments that no function above calls or writes to.
_NAMED = (
    *("start", "default", "ndigits", "axis", "exist_ok", "encoding", "newline", "mode", "indent", "reverse", "strict"),
    *("seconds", "minutes", "hours", "days", "milliseconds"),
)
_OF_CLASSES = ((datetime.datetime, "now"), (datetime.datetime, "utcnow"), (datetime.date, "today"))


class NotProvenError(Exception):
    """Raised by whatever is not known to write nothing."""


class Value(NamedTuple):
    """Holds the kinds of an expression; instead, of what code names, the object, and of a method its owner."""

    kinds: frozenset[str] = frozenset()
    one: Any = None
    owner: Value | None = None

    @property
    def is_readable(self) -> bool:
        """Whether it may be computed with, compared, printed and kept."""
        return self.one is None and self.kinds <= READ


def of(*kinds: str) -> Value:
    """Return a value of the ``kinds``."""
    return Value(frozenset(kinds))


def require(holds: bool) -> None:
    """Raise NotProvenError unless ``holds``."""
    if not holds:
        raise NotProvenError


def kinds_of(one: Any) -> frozenset[str]:
    """Return the kinds of an object, by its exact type; NotProvenError for all that is not known to be plain."""
    found = _kind_of(one)
    waiting, left = [one] if found == CONTAINER else [], _LARGEST
    while waiting:
        each = waiting.pop()
        items = [*each.keys(), *each.values()] if type(each) is dict else [*each]
        left -= len(items)
        require(left > 0)
        kinds = [_kind_of(item) for item in items]
        require(not OUTPUT.keys() & kinds)
        waiting += [item for item, kind in zip(items, kinds, strict=True) if kind == CONTAINER]
    return frozenset((found,))


def _kind_of(one: Any) -> str:
    kind = type(one)
    if _is_in(kind, _PLAIN):
        require(kind is not datetime.datetime or one.tzinfo is None or type(one.tzinfo) is datetime.timezone)
        return PLAIN
    if issubclass(kind, np.generic) and kind.__module__ == "numpy" and not issubclass(kind, np.void):
        return FRESH
    if kind is np.ndarray:
        require(not one.dtype.hasobject)
        return ARRAY
    if kind is ms.Tensor or kind is ms.Parameter:
        require(not _has_functions(one))
        return TENSOR
    output = output_of(kind)
    if output is not None:
        require(not _has_functions(one))
        # A bar adds to the numbers that it was given in place.
        require(output != BAR or all(_is_in(type(vars(one).get(name)), _PLAIN) for name in _OF_BARS))
        return output
    require(_is_in(kind, _CONTAINERS))
    return CONTAINER


def _has_functions(one: Any) -> bool:
    """Return whether the object has functions of its own, which may take the place of its methods."""
    own = getattr(one, "__dict__", {})
    return any(_is_in(type(each), (types.FunctionType, types.MethodType)) for each in own.values())


def _is_in(one: Any, some: Iterable[Any]) -> bool:
    """Return whether ``one`` is one of ``some``, without asking it."""
    return any(one is each for each in some)


def computed(kinds: frozenset[str]) -> frozenset[str]:
    """Return the kinds of what an operator with two operands makes of ``kinds``: its arrays and tensors are new."""
    made = {ARRAY: FRESH, TENSOR: NEW_TENSOR}
    return frozenset(made.get(kind, kind) for kind in kinds)


def item_of(owner: Value) -> Value:
    """Return what an index gives."""
    require(owner.is_readable)
    given = {PLAIN: {PLAIN, CONTAINER}, CONTAINER: ANY, ARRAY: {ARRAY}, FRESH: {FRESH}}
    return Value(frozenset().union(*(given.get(kind, {TENSOR}) for kind in owner.kinds)))


def output_of(kind: type) -> str | None:
    """Return the kind of objects of a class that only write text; None for other classes."""
    if type(kind) is not type:
        return None
    is_bar = kind.__module__ in _BARS and kind.__name__.startswith("tqdm")
    return BAR if is_bar else next((name for one, name in _OF_TYPES.items() if one is kind), None)


def named(one: Any) -> Value:
    """Return what is known of an object that code names."""
    kinds = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, np.ufunc, type(np.mean))
    if _is_in(type(one), kinds) or issubclass(type(one), type):
        return Value(one=one)
    if one is sys.stdout or one is sys.stderr:
        return of(FILE)
    found = kinds_of(one)
    return Value(found | ANY if found <= READ else found)  # other code may give the name another value


def attribute_of(owner: Value, name: str) -> Value:
    """Return an attribute, or a method, of anything but the callback."""
    require(not name.startswith("_"))
    if owner.one is not None:
        return _attribute_of_object(owner.one, name)
    if owner.kinds == {PARAMS}:
        return argument_of_training(name) if name != "get" else Value(one=name, owner=owner)
    if owner.kinds == {OPTIMIZER}:
        require(name in _OF_OPTIMIZER)
        return of(_OF_OPTIMIZER[name])
    having = [kind for kind in owner.kinds if kind not in _TYPES or _has(kind, name)]
    require(bool(having) or not owner.kinds)  # what none of them has is of something else
    found = {_ATTRIBUTES.get(kind, {}).get(name, _METHOD) for kind in having}
    if found <= {_METHOD}:
        return Value(one=name, owner=owner)
    require(_METHOD not in found)
    return Value(frozenset(found))


def _has(kind: str, name: str) -> bool:
    """Return whether values of the kind have the attribute; if not, asking for it raises."""
    return any(hasattr(one, name) for one in _TYPES[kind])


def argument_of_training(name: Any) -> Value:
    """Return one of the arguments that ``Model`` gives to callbacks."""
    require(name in _OF_TRAINING)
    return of(*_OF_TRAINING[name])


def _attribute_of_object(one: Any, name: str) -> Value:
    if type(one) is types.ModuleType:
        require(name in vars(one))
        return named(vars(one)[name])
    if any(one is kind and name == each for kind, each in _OF_CLASSES):
        return Value(one=(one, name))
    raise NotProvenError


def called_method(owner: Value, name: str, given: Sequence[Value], by_name: Mapping[str, Value]) -> Value:
    """Return what a method returns."""
    if owner.kinds == {CONTEXT}:
        require(name in _OF_CONTEXT and not given and not by_name)
        return of(_OF_CONTEXT[name])
    require(all(each.is_readable for each in (*given, *by_name.values())))
    output = owner.kinds & OUTPUT.keys()
    if output:
        require(is_output(owner, *output) and all(name in OUTPUT[kind] for kind in output))
        require(name != "update" or all(each.kinds <= {PLAIN, FRESH} for each in given))
        return of(PLAIN)
    having = [kind for kind in owner.kinds if kind in READ and _has(kind, name)]
    require(owner.kinds <= READ and (bool(having) or not owner.kinds) and (not by_name or having == [PLAIN]))
    # A text looks up attributes for `format`.
    require("format" not in name or all(each.kinds <= {PLAIN, ARRAY, FRESH} for each in (*given, *by_name.values())))
    return Value(frozenset[str]().union(*(_returned(kind, name, given) for kind in having)))


def is_output(value: Value, *kinds: str) -> bool:
    """Return whether the value is such an output; it may be None as long as the file is not open."""
    return bool(value.kinds & set(kinds)) and value.kinds <= {PLAIN, *kinds}


def _returned(kind: str, name: str, given: Sequence[Value]) -> frozenset[str]:
    """Return the kinds of what a method of a value of one kind returns."""
    if kind == CONTAINER:  # each of its methods writes to the container itself only
        return ANY
    if kind == PLAIN:
        return frozenset((PLAIN, CONTAINER))
    require(name in _METHODS[kind] and (not given or name == "reshape"))
    return frozenset((_METHODS[kind][name],))


def called_function(  # noqa: PLR0911 - one return per kind of function, as in a table
    target: Any, given: Sequence[Value], by_name: Mapping[str, Value], *, starred: bool
) -> Value | None:
    """Return what a function of a library returns; None if it is not known."""
    readable = all(each.is_readable for each in (*given, *by_name.values()))
    first = given[0] if given else Value()
    if target is print:
        output = by_name.get("file", of(FILE))
        require(type(print) is types.BuiltinFunctionType and is_output(output, FILE))
        require(by_name.keys() <= {"sep", "end", "flush", "file"} and all(each.is_readable for each in given))
        return of(PLAIN)
    if issubclass(type(target), type) and output_of(target) == BAR:
        require(all(each.one is None and each.kinds <= {PLAIN} for each in (*given, *by_name.values())))
        require(by_name.keys() <= {"total", "desc", "unit", "ncols", "leave", "disable", "initial"})
        return of(BAR)
    if target is csv.writer or target is csv.DictWriter:
        require(is_output(first, FILE) and all(each.is_readable for each in (*given[1:], *by_name.values())))
        return of(TABLE)
    if target is json.dump:
        require(len(given) == 2 and first.is_readable and is_output(given[1], FILE) and by_name.keys() <= {"indent"})
        return of(PLAIN)
    if type(target) is tuple:
        require(any(target is one or target == one for one in _OF_CLASSES) and not given and not by_name)
        return of(PLAIN)
    if _is_in(target, _NEW) or _is_in(target, _SAME):
        require(readable and len(given) == 1 and not starred and by_name.keys() <= {"axis"})
        if CONTAINER in first.kinds:  # an array of objects, or one of them
            return Value(ANY)
        return of(FRESH) if _is_in(target, _NEW) else of(ARRAY if first.kinds & {ARRAY, TENSOR} else FRESH)
    for kinds, functions in _RETURNS.items():
        if _is_in(target, functions):
            require(readable and by_name.keys() <= set(_NAMED))
            require(target is not os.getenv or all(each.kinds <= {PLAIN} for each in given))  # it returns its default
            return Value(kinds)
    return None
