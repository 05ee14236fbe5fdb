"""Tells the state of copies of an object and loads states into them, if all that its methods do is known.

Guarantees: `state_dict` and `load_state_dict` run for copies alone, and only if they, and the methods that they call,
compute with nothing but what was copied: they name no global or class attribute that can be changed, and call
only methods of plain values, of the object's own classes, and functions of a list. Any thread.
"""

from __future__ import annotations

import ast
import builtins
import re
import types
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

from ckptkit.mindspore.inspect.attributes import UNKNOWN, attributes_of, in_class, members_of, own_attributes
from ckptkit.mindspore.inspect.loops.source import body_of
from ckptkit.mindspore.inspect.users import is_users
from ckptkit.mindspore.inspect.values.copies import (
    DICTS,
    SEQUENCES,
    Copying,
    NotCopiedError,
    TooLargeError,
    places_in,
)
from ckptkit.mindspore.inspect.values.digest import is_plain

_BUILTINS = re.compile(
    r"abs|all|any|bool|bytes|bytearray|callable|complex|dict|divmod|enumerate|filter|float|frozenset|getattr|hasattr|int"
    r"|isinstance|len|list|map|max|min|pow|range|repr|reversed|round|set|setattr|sorted|str|sum|super|tuple|type"
    r"|vars|zip"
)
_OF_ITSELF = ("vars", "getattr", "setattr", "hasattr", "len", "super", "isinstance", "type", "asdict", "fields")
_FUNCTIONS = re.compile(
    r"(np|numpy)\.(array|asarray|ascontiguousarray|zeros|zeros_like|ones|ones_like|full|empty|arange|copy|concatenate|stack"
    r"|frombuffer|bool_|float16|float32|float64|u?int(8|16|32|64)|abs|amax|amin|argmax|argmin|argsort|cumsum|diff|dot"
    r"|exp|log|log2|max|mean|median|min|percentile|prod|quantile|std|sum|var|sort|unique|where|round|floor|sqrt|clip"
    r"|nonzero|flatnonzero|packbits|unpackbits)"
    r"|(np|numpy)\.random\.(default_rng|RandomState|Generator|SeedSequence|PCG64(DXSM)?|MT19937|Philox|SFC64)"
    r"|random\.Random|math\.\w+|copy\.(copy|deepcopy)|collections\.(deque|OrderedDict|Counter|defaultdict)"
    r"|pickle\.(dumps|loads)|json\.(dumps|loads)|base64\.\w*(16|32|64|85)(en|de)code|dataclasses\.(asdict|astuple|fields)|itertools\.(chain|islice|pairwise|zip_longest)"
    r"|operator\.itemgetter|datetime\.\w+(\.fromisoformat)?|decimal\.Decimal|fractions\.Fraction"
)
_IMPORTED = re.compile(
    r"deque|OrderedDict|Counter|defaultdict|asdict|astuple|fields|deepcopy|Decimal|Fraction|default_rng|RandomState|chain"
)
_METHODS = re.compile(
    r"add|append(left)?|as_integer_ratio|astype|bit_length|clear|copy|count|decode|difference|discard|elements|encode"
    r"|endswith|extend(left)?|fill|flatten|format|from_bytes|fromhex|fromisoformat|get|get_state|getstate|hex|index|insert"
    r"|intersection|is_integer|isoformat|item|items|join|keys|lower|lstrip|max|mean|min|most_common|move_to_end|partition"
    r"|pop(item|left)?|ravel|remove|removeprefix|replace|reshape|reverse|rotate|rpartition|rstrip|set_state|setdefault"
    r"|setstate|sort|split|splitlines|startswith|strip|sum|symmetric_difference|title|to_bytes|tobytes|tolist|total|union"
    r"|update|upper|values|view|zfill"
)
_NOT_HERE = (
    *(ast.Global, ast.Nonlocal, ast.Import, ast.ImportFrom, ast.With, ast.AsyncWith, ast.AsyncFor, ast.While),
    *(ast.Await, ast.Yield, ast.YieldFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.Try),
)
_LARGE_BYTES = 1 << 22  # of what a state is made of
_CLASSES = (dict, list, tuple, set, frozenset, int, float, str, bytes, bool, deque, *DICTS, Decimal, Fraction)
_CHANGEABLE = (list, dict, set, deque, np.ndarray, bytearray)
_FACTORIES = ("int", "float", "list", "dict", "set", "deque", "Counter")
_KEPT = ("__name__", "__qualname__", "__dict__", "__init__", "__slots__")


class Loading:
    """Tells and loads states of copies of an object.

    Args:
        one: The object.

    Attributes:
        may_tell: Whether the code of ``state_dict`` is known to change nothing else.
        may_load: The same of ``load_state_dict``.
        size: How many containers, objects and items a copy has.
    """

    def __init__(self, one: Any) -> None:
        self._one = one
        self._copying = Copying()
        has_copy = self._copied(self._copying) is not UNKNOWN
        self.size = self._copying.size
        self.may_tell = has_copy and self._is_harmless("state_dict") and not self._is_large()
        self.may_load = self.may_tell and self._is_harmless("load_state_dict")

    def copy(self) -> Any:
        """Return a whole copy; `UNKNOWN` if there is none."""
        return self._copied(Copying())

    def _copied(self, copying: Copying) -> Any:
        try:
            return copying.of(self._one)
        except (NotCopiedError, TooLargeError):
            return UNKNOWN

    def told(self, made: Any) -> Any:
        """Return the plain state of a copy; `UNKNOWN` if it does not take the values."""
        try:
            with np.errstate(all="ignore"):
                state = made.state_dict()
        except Exception:  # noqa: BLE001 - code of the user's, with values that it may not take
            return UNKNOWN
        return state if is_plain(state) else UNKNOWN

    def loaded(self, state: Any, name: str = "") -> tuple[Any, bool]:
        """Return a copy with a state, `UNKNOWN` if it cannot be loaded; and whether an attribute is another object."""
        made = self.copy()
        try:
            given = Copying().of(state)
            before = dict(attributes_of(made)).get(name)
            with np.errstate(all="ignore"):
                made.load_state_dict(given)
        except Exception:  # noqa: BLE001 - as in `told`
            return UNKNOWN, False
        return made, dict(attributes_of(made)).get(name) is not before

    def _is_large(self) -> bool:
        """Return whether ``state_dict`` uses so much memory that it takes long."""
        nodes = [each for _, body in _bodies(self._copying.kinds, ("state_dict",)) for each in _walk(body)]
        named = {each.attr for each in nodes if isinstance(each, ast.Attribute)}
        uses_all = _asks_by_name(nodes)
        used = (place.value for place in places_in(self._one) if uses_all or place.name in named)
        return sum(map(_size_of, used)) > _LARGE_BYTES

    def _is_harmless(self, name: str) -> bool:
        bodies = [*_bodies(self._copying.kinds, (name, "__len__"))]
        found = any(function.__name__ == name for function, _ in bodies)
        return found and all(_Method(*each, self._copying, self._one).is_harmless() for each in bodies)


def _bodies(kinds: set[type], names: Sequence[str]) -> Iterator[tuple[types.FunctionType, Sequence[ast.stmt]]]:
    """Yield the methods of these names of the classes, and the methods that they name, with their statements."""
    wanted, done = {*names}, set[str]()
    while wanted - done:
        done.add(name := (wanted - done).pop())
        for kind in kinds:
            for base in kind.__mro__:
                one = vars(base).get(name) if is_users(base.__module__) else None
                one = one.fget if isinstance(one, property) else one
                if isinstance(one, types.FunctionType):
                    body = body_of(one.__code__, one.__globals__)
                    yield one, body
                    wanted |= {each.attr for each in _walk(body) if isinstance(each, ast.Attribute)}


def _asks_by_name(nodes: Sequence[ast.AST]) -> bool:
    """Return whether code may reach any attribute, by a name that it computes."""
    names = {each.id for each in nodes if isinstance(each, ast.Name)}
    asked = {each.attr for each in nodes if isinstance(each, ast.Attribute)}
    return not names.isdisjoint({"vars", "getattr", "setattr"}) or "__dict__" in asked


def _keeps_in_class(kind: type) -> bool:
    """Return whether a class of the user's has an attribute that can be changed."""
    return any(not name.startswith("__") and isinstance(one, _CHANGEABLE) for name, one in members_of(kind))


def _size_of(value: Any) -> int:
    """Return how many bytes the arrays and texts in a plain value have."""
    if isinstance(value, np.ndarray):
        return int(value.nbytes)
    inner = value.values() if type(value) in DICTS else value if type(value) in SEQUENCES else ()
    return len(value) if isinstance(value, (str, bytes)) else sum(_size_of(one) for one in inner)


def _walk(body: Sequence[ast.stmt]) -> Iterator[ast.AST]:
    return (each for one in body for each in ast.walk(one))


class _Method:
    """Reads one method.

    Args:
        function: The method.
        body: Its statements.
        copying: What is in the copies.
        whole: The object.
    """

    def __init__(self, function: types.FunctionType, body: Sequence[ast.stmt], copying: Copying, whole: Any) -> None:
        self._module: Mapping[str, Any] = function.__globals__
        self._free = {*function.__code__.co_freevars} - {"__class__"}
        self._nodes = [*_walk(body)]
        self._copying = copying
        self._kinds = copying.kinds
        self._whole = whole
        self._owner = function.__code__.co_varnames[:1]
        stored = {each.id for each in self._nodes if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
        self._given = {*function.__code__.co_varnames, *function.__code__.co_cellvars, *stored}
        self._parents = {id(child): one for one in self._nodes for child in ast.iter_child_nodes(one)}

    def is_harmless(self) -> bool:
        """Return whether it only computes with what it was given."""
        if not self._nodes or self._free or any(isinstance(each, _NOT_HERE) for each in self._nodes):
            return False
        if _asks_by_name(self._nodes) and any(map(_keeps_in_class, self._kinds)):
            return False
        checks = {ast.Name: self._may_name, ast.Attribute: self._may_ask, ast.Call: self._may_call}
        return all(checks[type(each)](each) for each in self._nodes if type(each) in checks)  # type: ignore[operator]

    def _may_name(self, one: ast.Name) -> bool:
        if one.id in self._owner:
            return self._may_pass_itself(one)
        if one.id in self._given:
            return True
        target = self._module.get(one.id, getattr(builtins, one.id, UNKNOWN))
        if one.id == "type":
            call = self._parents.get(id(one))
            asked = self._parents.get(id(call)) if call is not None else None
            is_name = isinstance(asked, ast.Attribute) and asked.attr in ("__name__", "__qualname__")
            return isinstance(call, ast.Call) and is_name
        if isinstance(target, types.ModuleType) or _is_constant(target):
            return True
        is_error = isinstance(target, type) and issubclass(target, Exception) and not is_users(target.__module__)
        is_builtin = target is getattr(builtins, one.id, None) and _BUILTINS.fullmatch(one.id) is not None
        is_imported = _IMPORTED.fullmatch(one.id) is not None and not is_users(
            getattr(target, "__module__", "builtins")
        )
        own_class = (
            isinstance(target, type) and target in self._kinds and isinstance(self._parents.get(id(one)), ast.Call)
        )
        is_super = own_class and ast.unparse(self._parents[id(one)]).startswith("super(")
        return is_error or is_builtin or is_imported or is_super or target in _CLASSES

    def _may_pass_itself(self, one: ast.Name) -> bool:
        """Return whether the object is only asked for attributes, or given to what does no more."""
        parent = self._parents.get(id(one))
        if isinstance(parent, ast.Attribute):
            return True
        return isinstance(parent, ast.Call) and ast.unparse(parent.func).rpartition(".")[2] in _OF_ITSELF

    def _may_ask(self, one: ast.Attribute) -> bool:
        if one.attr.startswith("__") and one.attr not in (*_KEPT, "__class__"):
            return isinstance(self._parents.get(id(one)), ast.Call) and ast.unparse(one).startswith("super()")
        if one.attr == "__class__":
            asked = self._parents.get(id(one))
            return isinstance(asked, ast.Attribute) and asked.attr in ("__name__", "__qualname__")
        if isinstance(one.ctx, ast.Load) and one.attr in self._copying.functions:
            return False  # it may be called anywhere
        is_own = isinstance(one.value, ast.Name) and one.value.id in self._owner
        if not isinstance(one.ctx, ast.Load) and not is_own and self._copying.shares:
            return False  # it may be set at what is not copied
        for kind in self._kinds:
            found = in_class(kind, one.attr)
            is_own = kind is type(self._whole) and one.attr in own_attributes(self._whole)
            of_object = isinstance(found, (types.FunctionType, types.MemberDescriptorType))
            of_object |= isinstance(found, property) and isinstance(one.ctx, ast.Load)  # its code is read, too
            if found is not UNKNOWN and not is_own and not of_object:
                return _is_constant(found) or not is_users(getattr(kind, "__module__", ""))
        return True

    def _may_call_name(self, name: str, given: Sequence[ast.expr]) -> bool:
        if name in self._given or name in self._owner:
            return False
        if name in ("map", "filter"):
            return bool(given) and self._is_class(given[0])
        if name == "defaultdict":
            return not given or (isinstance(given[0], ast.Name) and given[0].id in _FACTORIES)
        return True  # `_may_name` decides

    def _may_call(self, one: ast.Call) -> bool:
        called = one.func
        named = {each.arg: each.value for each in one.keywords}
        if "out" in named or ("key" in named and not self._is_class(named["key"])):
            return False
        if isinstance(called, ast.Name):
            return self._may_call_name(called.id, one.args)
        if not isinstance(called, ast.Attribute):
            return False
        text = ast.unparse(called)
        root = text.partition(".")[0]
        if isinstance(self._module.get(root), types.ModuleType) and root not in self._given:
            name = f"{self._module[root].__name__}{text[len(root) :]}"
            return _FUNCTIONS.fullmatch(text) is not None or _FUNCTIONS.fullmatch(name) is not None
        is_method = any(isinstance(in_class(kind, called.attr), types.FunctionType) for kind in self._kinds)
        return is_method or _METHODS.fullmatch(called.attr) is not None

    def _is_class(self, one: ast.expr) -> bool:
        return isinstance(one, ast.Name) and one.id not in self._given and getattr(builtins, one.id, None) in _CLASSES


def _is_constant(one: Any) -> bool:
    atoms = (types.NoneType, bool, int, float, complex, str, bytes)
    return type(one) in atoms or (type(one) in (tuple, frozenset) and all(map(_is_constant, one)))
