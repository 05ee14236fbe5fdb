"""Objects of which each special method, property and descriptor raises once it is called: nothing may run it."""

from __future__ import annotations

import contextlib

ARMED = []


def _refuse(name):
    def method(self, *arguments, **named):
        if ARMED:
            raise AssertionError(f"calls {name} of the user's")
        raise AttributeError(name) if name == "__getattr__" else TypeError(name)

    return method


def _hash(self):
    if ARMED:
        raise AssertionError("calls __hash__ of the user's")
    return 1


_NAMES = """
__getattr__ __eq__ __ne__ __lt__ __bool__ __len__ __iter__ __next__ __repr__ __str__ __getitem__ __contains__ __call__
__format__ __bytes__ __int__ __index__ __float__ __copy__ __reduce__ __reduce_ex__ __getstate__ __deepcopy__ __array__
__length_hint__ __dir__ __fspath__ __init__ __setattr__ items keys values get state_dict asnumpy tolist
"""
SPECIALS = {**{name: _refuse(name) for name in _NAMES.split()}, "__hash__": _hash}
FIELDS = {name: property(_refuse(name)) for name in ("__class__", "lazy", "shape", "dtype", "name")}

Plain = type("Plain", (), {**SPECIALS, **FIELDS, "__module__": __name__})
NoDict = type("NoDict", (), {**SPECIALS, "__dict__": property(_refuse("__dict__")), "__module__": __name__})
Slots = type("Slots", (), {**SPECIALS, **FIELDS, "__slots__": ("total",), "__module__": __name__})
BASES = (dict, list, tuple, set, frozenset, int, float, str, bytes)
EXTENDED = [
    type(f"Of{base.__name__}", (base,), {**SPECIALS, "__class__": FIELDS["__class__"], "__module__": __name__})
    for base in BASES
]


def objects():
    plain, without, slots = (object.__new__(kind) for kind in (Plain, NoDict, Slots))
    object.__setattr__(plain, "total", 3)
    object.__setattr__(slots, "total", 3)
    return [plain, without, slots, *(base.__new__(kind) for base, kind in zip(BASES, EXTENDED, strict=True))]


def running():
    total = 0
    while True:
        total += 1
        yield total


@contextlib.contextmanager
def armed():
    ARMED.append(True)
    try:
        yield
    finally:
        ARMED.clear()
