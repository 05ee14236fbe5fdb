"""Tells which callbacks only look within an epoch: their code that runs there reaches no parameter.

Reach counts, not what the code does: Python has more ways to write than a list can name. Reads the bytecode of the
hooks and of all functions that it names, and the objects that these name, as they are when training begins.
Guarantees: runs nothing of the user's; what cannot be read counts as something that writes. Assumes that nobody patches
objects of libraries, or gives the callback others later, and that a train cell returns no parameter. Main thread only.
"""

from __future__ import annotations

import datetime
import functools
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn
from mindspore.ops import Primitive
from mindspore.train import Callback, LambdaCallback

from ckptkit.mindspore.observe.attributes import own_attributes
from ckptkit.mindspore.observe.named_objects import UNKNOWN, attribute, instructions_of, named_objects, owner_of
from ckptkit.mindspore.observe.random_operators import GENERATORS
from ckptkit.mindspore.observe.users import is_users

_MOST = 20_000  # objects
# What leads from the arguments of a hook to a parameter; `test_arguments_of_hooks_are_known` finds others. Of the
# optimizer, two attributes may be read: a save copies anything that small at once.
KEYS = {"network", "train_network", "eval_network", "loss_fn", "list_callback", "optimizer", "dataset_helper"}
KEYS |= {"train_dataset", "valid_dataset"}
_OF_OPTIMIZERS = ("learning_rate", "global_step")
# What leads to any object of the process.
_ANYWHERE = {"eval", "exec", "compile", "vars", "globals", "locals", "setattr", "__import__", "modules", "__dict__"}
_ANYWHERE |= {"_getframe", "_current_frames", "f_locals", "f_globals", "f_back", "tb_frame", "gi_frame", "__self__"}
_ANYWHERE |= {"__globals__", "__closure__", "__subclasses__", "__builtins__", "_original_args", "import_module"}
_MODULES = ("gc", "ctypes", "inspect", "importlib")
_PLAIN: tuple[type, ...] = (type(None), bool, int, float, complex, str, bytes, range, slice, np.dtype, np.generic)
_PLAIN += (datetime.date, datetime.timedelta, datetime.timezone, types.CodeType, Primitive, *GENERATORS)
_PLAIN += (types.ClassMethodDescriptorType, types.MethodDescriptorType)
_CONTAINERS = (list, tuple, dict, set, frozenset, deque, OrderedDict, Counter, defaultdict)
_OUTPUTS = ("logging", "_io", "_csv", "csv", "pathlib", "tqdm", "_thread", "threading", "numpy")  # hold no parameter


def only_looks(callback: Callback, hooks: Iterable[str]) -> bool:
    """Return whether no hook of these names of ``callback`` reaches a parameter."""
    return _Reach(callback, hooks).is_harmless


def is_idle(callback: Callback) -> bool:
    """Return whether ``callback`` has no effect on training: it only looks, draws nothing and never ends it."""
    reach = _Reach(callback, [name for name in vars(Callback) if name[0] != "_"])
    is_own = all(is_users(kind.__module__) for kind in type(callback).__mro__ if kind not in (Callback, object))
    acts = reach.draws or not reach.names.isdisjoint(("optimizer", "request_stop", "RAISE_VARARGS"))
    return is_own and reach.is_harmless and not acts


class _Reach:
    """Finds what hooks of a callback can reach; ``names`` are those in the code, and its kinds of instructions."""

    def __init__(self, callback: Callback, hooks: Iterable[str]) -> None:
        self._callback, self.draws = callback, False
        self.names: set[str] = set()
        self._judged: dict[Any, Any] = {}  # holds the objects, so that no id is reused
        members = [*_members(callback)]
        parts = [attribute(callback, name) for name in hooks]
        parts += [part for name, part in members if name.startswith("__") or not hasattr(part, "__func__")]
        self.is_harmless, before = not isinstance(callback, LambdaCallback), -1
        while self.is_harmless and before != len(self.names):
            before = len(self.names)
            self.is_harmless = self._are_harmless(parts)
            # Other methods may set what this code reads, and a property is set without being named.
            parts = [part for name, part in members if not self.names.isdisjoint((name, *_set_by(part)))]

    def _are_harmless(self, values: Iterable[Any]) -> bool:
        waiting = deque(values)
        while waiting and len(self._judged) < _MOST:
            value = waiting.popleft()
            is_method = type(value) is types.MethodType
            key = (id(value.__func__), id(value.__self__)) if is_method else id(value)
            is_plain = issubclass(type(value), _PLAIN) and not is_users(type(value).__module__)
            if not is_plain and value is not UNKNOWN and value is not self._callback and key not in self._judged:
                self._judged[key] = value
                parts = self._parts_of(value)
                if parts is None:
                    return False
                waiting.extend(parts)
        return not waiting

    def _parts_of(self, value: Any) -> Iterable[Any] | None:
        """Return what may be reached from ``value``; None if that is a parameter, or not known."""
        kind = type(value)
        is_users_own = is_users(kind.__module__)
        parts: Iterable[Any] | None = None
        if kind is types.ModuleType:
            parts = () if value.__name__.partition(".")[0] not in _MODULES else None
        elif kind in (types.FunctionType, types.MethodType):
            parts = self._named_by(value)
        elif kind in (types.BuiltinFunctionType, types.MethodWrapperType):
            parts = (value.__self__,)
        elif kind is functools.partial:
            parts = (value.func, *value.args, *value.keywords.values())
        elif kind in _CONTAINERS:
            parts = (*value, *(value.values() if issubclass(kind, dict) else ()))
        elif issubclass(kind, type):
            parts = [part for _, part in _members(value)] if not is_users_own else None
        elif is_users_own:
            if not issubclass(kind, (nn.Cell, ms.Tensor, np.ndarray, *_CONTAINERS, int, float, str)):
                parts = (*own_attributes(value).values(), *(part for _, part in _members(value)))
        elif kind is np.ndarray:
            parts = () if value.flags.owndata and not value.dtype.hasobject else None
        elif kind.__module__.partition(".")[0] in _OUTPUTS:
            parts = ()
        return parts

    def _named_by(self, value: Any) -> Iterable[Any] | None:
        """Return what a function or a method holds and names; None if a name leads to a parameter."""
        function = getattr(value, "__func__", value)
        parts = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        parts += [value.__self__] if function is not value else []
        if not is_users(function.__module__):
            return parts
        if not _names_no_key(function.__code__):
            return None
        for named in named_objects(value, lambda _: False):
            last = named.name.rpartition(".")[2]
            for instruction in instructions_of(named.code):
                self.names |= {instruction.opname, str(instruction.argval)}
            self.draws |= issubclass(type(owner_of(named.value)), GENERATORS)
            is_rate = last == "optimizer" and named.then in _OF_OPTIMIZERS
            if last in KEYS | _ANYWHERE and (named.value is UNKNOWN or callable(named.value)) and not is_rate:
                return None
            if named.value is super:
                parts += [part for name, part in _members(self._callback) if name == named.code.co_name]
            if named.value is self._callback and not named.then:  # other code gets it whole
                parts += own_attributes(self._callback).values()
                parts += [part for _, part in _members(self._callback)]
            parts.append(named.value)
        return parts


@functools.lru_cache(maxsize=1024)
def _names_no_key(code: types.CodeType) -> bool:
    """Return whether no text in the code leads to a parameter, and it imports nothing unknown."""
    texts = [part for value in code.co_consts for part in (value if isinstance(value, tuple) else (value,))]
    imports = [step.argval for step in instructions_of(code) if step.opname == "IMPORT_NAME"]
    inner = [text for text in texts if isinstance(text, types.CodeType)]
    is_known = KEYS.isdisjoint(text for text in texts if isinstance(text, str)) and not any(map(is_users, imports))
    return is_known and all(map(_names_no_key, inner))


def _members(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what the user's classes of an object, or a class of the user's, define; methods bound to the object."""
    is_class = isinstance(value, type)
    for base in (value if is_class else type(value)).__mro__:
        for name, member in vars(base).items() if is_users(base.__module__) else ():
            parts = [getattr(member, part, None) for part in ("fget", "fset", "fdel", "func", "__func__")]
            functions = [part for part in (member, *parts) if type(part) is types.FunctionType]
            is_bound = not is_class and type(member) is not staticmethod
            if name not in ("__init__", "__new__"):
                yield from ((name, types.MethodType(part, value) if is_bound else part) for part in functions)
            if not functions and not name.startswith(("__", "_abc_")):
                yield name, member


def _set_by(method: Any) -> set[str]:
    code = getattr(method, "__code__", None)
    return {step.argval for step in instructions_of(code) if step.opname == "STORE_ATTR"} if code is not None else set()
