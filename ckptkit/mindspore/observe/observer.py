"""Finds what training changes, stores it, puts it back, and says what cannot be stored: `Observer`.

It looks before the first micro-step, after 1, 2, 4, 8, ... of them, at each end of an epoch, and before a save if a
look is quick, or if looks have taken less than a hundredth of the time since the last one. What differs from the first
look has changed, and is stored from the next save on.

An object that the first look sees has a *home*, the path at which it is seen. It is at home there in the next process,
too, whose first look sees what a script begins with. So all that is stored is said of these objects: their new content
(of a list, a dict, an array), and what one of their attributes, or a variable, leads to now: a plain value, a new
object, or one that has a home.

Guarantees: a look changes nothing. `Observer.begin` changes only what a checkpoint holds. Main thread only.
"""

from __future__ import annotations

import json
import re
import sys
import time
import types
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import partial
from typing import Any, NamedTuple

import mindspore as ms
import numpy as np
from mindspore import nn

from ckptkit.mindspore.observe.data_changes import DataChanges
from ckptkit.mindspore.observe.liveness import gathers
from ckptkit.mindspore.observe.outside_inputs import Outside
from ckptkit.mindspore.observe.packing import CannotPackError, Packer, Unpacker, has_content, refilled, signature_of
from ckptkit.mindspore.observe.path_lookup import Places, is_followed, is_settable
from ckptkit.mindspore.observe.paths import Chain, Root, chain_of, is_below, plain_chain
from ckptkit.mindspore.observe.user_code import is_users_function
from ckptkit.mindspore.observe.value_kinds import OUTSIDE, Known, is_of_process
from ckptkit.mindspore.observe.walk import OF_DATA, Fact, Home, Node, Walk
from ckptkit.mindspore.observe.walk_roots import Reached, Roots, label_of, owner_of_variables, users_frames
from ckptkit.mindspore.parameters.memory import is_compiled

MOST_BYTES = 1 << 24
_LOOK_SHARE = 100  # of the time
_FEW_NODES = 3_000  # looked at before each save
_CONTAINERS = (list, dict, set, deque)
_IN_GRAPH = "compiled into the graph with its first value in this process"
_LATE = "changes after step()"
_GATHERED = "comprehension around the batches", "what it has made of them lies in no variable"
_OF_DATA = "belongs to the data, but the steps change it"


class Slot(NamedTuple):
    """Says what is stored: the content of the object at a path, or else what the path leads to.

    Attributes:
        chain: That of the next process.
        is_content: Whether it is the content.
        path: That the log says.
    """

    chain: Chain
    is_content: bool
    path: str


class Observer:
    """Observes one training.

    Args:
        reach: Gives what the training reaches, now.
        ignore: Patterns of paths that are neither stored nor named, and objects.

    Attributes:
        unstored: Why what changes is not stored, by path.
        reached_code: The user's functions, and the cells, of the first look: path, object, whether MindSpore wraps it.
        reaches_compiled: Whether the training reaches a function that ``@ms.jit`` has made.
    """

    def __init__(
        self,
        reach: Callable[[], Reached],
        *,
        ignore: Sequence[Any] = (),
    ) -> None:
        self._reach = reach
        patterns = [pattern for pattern in ignore if type(pattern) is str]
        self._patterns = [re.compile(re.escape(pattern).replace(r"\*", ".*")) for pattern in patterns]
        self._ignored = [value for value in ignore if type(value) is not str]
        self._roots, self._data, self._outside = Roots(), DataChanges(), Outside()
        self._saved: Mapping[str, Any] | None = None
        self._packed_first: Any = None  # the texts by path of the first look of the run's first start
        self._nodes: dict[str, Node] | None = None  # of the last look, by path, without their objects; None before one
        self._before: Mapping[str, Node] = {}  # of the look before that one
        self._homes: dict[int, Home] = {}  # by the id of an object, which may be another one's by now: `_home_of`
        self._first: dict[Fact, str] = {}
        self._slots: dict[Fact, Slot] = {}
        self._running: set[str] = set()  # functions and modules that asked for a batch: their new variables are changes
        self._given: Set[int] = frozenset()  # the ids of objects given by name that have a state of their own
        self._in_graph = self._asks_next = self.reaches_compiled = False
        self._steps, self._epoch = 0, -1
        self._looked_at, self._looked_step, self._look_seconds = float("-inf"), -1, 0.0
        self.reached_code: list[tuple[str, Any, bool]] = []
        self.unstored: dict[str, str] = {}

    @property
    def has_begun(self) -> bool:
        """Whether the first look is done."""
        return self._nodes is not None

    @property
    def stored(self) -> list[str]:
        """The paths of what is stored."""
        return [*dict.fromkeys(slot.path for slot in self._slots.values())]

    def load(self, saved: Mapping[str, Any] | None) -> None:
        """Keep the section of a checkpoint until `begin`; None for a run that begins."""
        self._saved, self._nodes = saved, None

    def begin(self) -> tuple[list[tuple[str, str]], list[tuple[str, str, str]]]:
        """Look for the first time, as the first batch is handed out; put back what the checkpoint holds.

        Returns:
            The paths of what could not be put back, and why; the paths of what differs from the first look of the saved
            run, and its texts then and now.
        """
        saved, self._saved = self._saved, None
        lost: list[tuple[str, str]] = []
        differing: list[tuple[str, str, str]] = []
        nodes = self._look(at_batch=True)
        for node in nodes.values():
            signature, chain = signature_of(node.value), node.chain()
            if signature is not None and is_followed(chain) and node.identity not in self._homes:
                self._homes[node.identity] = Home(node.path, chain, signature)
        self._running |= set(map(owner_of_variables, users_frames(sys._getframe(1))))
        self.reaches_compiled = any(is_compiled(node.value) for node in nodes.values())
        self.reached_code = [*_reached_code(nodes)]
        self._outside.begin()
        if saved is None:
            first = {path: node.text for path, node in nodes.items()}
            self._packed_first = np.frombuffer(zlib.compress(json.dumps(first).encode()), np.uint8)
        else:
            self._packed_first = saved["first"]
            differing = self._differing(saved, nodes)
            lost = self._put_back(saved["slots"])
            _let_go(nodes)
            nodes = self._look(at_batch=True)
        self._settle(nodes)
        for node in nodes.values():
            for fact, state in node.facts():
                self._first.setdefault(fact, state)
        _let_go(nodes)
        return lost, differing

    def note_place(self) -> None:
        """Note the live variables of the functions that run now: in a loop of epochs a resume may begin here, too."""
        frames = users_frames(sys._getframe(1))
        self._roots.note_live(frames)
        self._running |= set(map(owner_of_variables, frames))

    def end_step(self, epoch: int) -> bool:
        """Count a micro-step of ``epoch``, or of the one before it, and return whether `look` is due at its end."""
        if self._nodes is None:
            return False
        self._steps += 1
        before, self._epoch = self._epoch, epoch
        return self._steps & (self._steps - 1) == 0 or epoch != before

    def look(self) -> None:
        """Look at what training has changed."""
        self._look_at_changes(at_batch=False)
        self._asks_next = True

    def hand_out(self, *, ends_epoch: bool) -> None:
        """Look at the data as a batch is handed out, if the step after it ends with a look."""
        if (self._steps + 1) & self._steps == 0 or ends_epoch:
            self._data.look(self._reach(), self._steps + 1, is_handed_out=True)

    def ask_batch(self) -> None:
        """Look once more before the next batch is made, if the last look was just now: a resume begins here."""
        if self._asks_next and (before := self._nodes) is not None:
            self._asks_next = False
            for path, node in self._look_at_changes(at_batch=True).items():
                slot = self._slots.get(node.place(is_content=node.home is not None)[1])
                if slot is not None and path in before and before[path].text != node.text:
                    self.unstored.setdefault(slot.path, _LATE)

    def texts(self, frame: types.FrameType) -> dict[str, str]:
        """Return the texts by path of a look that nothing depends on."""
        nodes = self._look(at_batch=False, frame=frame)
        _let_go(nodes)
        return {path: node.text for path, node in nodes.items()}

    def section(self, frame: types.FrameType) -> dict[str, Any] | None:
        """Return what a checkpoint stores; None before the first batch."""
        if self._nodes is None:
            return None
        since = time.perf_counter() - self._looked_at
        is_quick = len(self._nodes) < _FEW_NODES or since > self._look_seconds * _LOOK_SHARE
        if self._looked_step != self._steps and is_quick:
            self._look_at_changes(at_batch=False)
        reached = self._reach()
        frames = [*users_frames(frame), *self._roots.generators()]
        places, slots = Places(reached, frames), []
        packer, running = self._packer(reached.known, places), set(map(label_of, frames))

        def has_ended(root: Root) -> bool:
            return root.kind == "variable" and root.owner not in running

        nodes = {fact: node for node in self._nodes.values() for fact, _ in node.facts()}
        for fact, (chain, is_content, path) in self._slots.items():
            here = nodes[fact].chain() if fact in nodes else None
            if here is None or has_ended(here[0]):  # what is gone is of no use to anybody
                continue
            try:
                value = places.follow(here)
                if not has_ended(chain[0]):
                    slots.append([path, plain_chain(chain), *packer.slot(value, is_content=is_content)])
            except CannotPackError as error:
                self.unstored.setdefault(path, str(error))
        unstored = sorted(self.unstored.items())
        return {"first": self._packed_first, "epochs": reached.epochs, "slots": slots, "unstored": unstored}

    def _look(self, *, at_batch: bool, frame: types.FrameType | None = None) -> dict[str, Node]:
        began = time.perf_counter()
        reached = self._reach()
        frames = users_frames(frame or sys._getframe(1))
        reached.known.stored |= {id(value) for value in (self, *self._ignored)}
        walk = Walk(reached.known)
        self._roots.add_to(walk, reached, frames, at_batch=at_batch)
        self._data.look(reached, -2 if at_batch else self._steps, is_handed_out=False)
        reached.known.data = self._data.objects
        walk.run()
        self._before, self._nodes = self._nodes or {}, walk.nodes
        self._looked_at, self._looked_step = time.perf_counter(), self._steps
        self._look_seconds = self._looked_at - began
        methods = ("state_dict", "load_state_dict")
        self._given = {id(value) for _, value in reached.given if all(hasattr(type(value), name) for name in methods)}
        self._in_graph = reached.in_graph
        return walk.nodes

    def _settle(self, nodes: Mapping[str, Node]) -> None:
        """Give nodes their homes, and the paths that begin there.

        An object that replaces another one of its kind, which is gone, gets its home.
        """
        inhabited = {home.path for node in nodes.values() if (home := self._home_of(node.value)) is not None}
        left = {home.path: (identity, home) for identity, home in self._homes.items() if home.path not in inhabited}
        for node in nodes.values():  # those of owners come first
            owner = node.parent
            # Of what has no home, the parts are none of the object whose home its path is.
            start = "" if owner is None else owner.home.path if owner.home else f"{owner.key}*"
            node.key = f"{start}{node.step}"
            node.home = self._home_of(node.value)
            if node.home is None and node.key in left and left[node.key][1].signature == signature_of(node.value):
                identity, node.home = left.pop(node.key)
                del self._homes[identity]
                self._homes[node.identity] = node.home
            is_item = node.step[0] in ("item", "key", "part")
            node.is_content_of_owner = owner is not None and is_item and issubclass(type(owner.value), _CONTAINERS)

    def _home_of(self, value: Any) -> Home | None:
        home = self._homes.get(id(value))
        return home if home is not None and home.signature == signature_of(value) else None

    def _look_at_changes(self, *, at_batch: bool) -> dict[str, Node]:
        """Look, and add what differs from the first look to the slots, or to what cannot be stored."""
        nodes = self._look(at_batch=at_batch)
        self._settle(nodes)
        for node in nodes.values():
            for fact, state in node.facts():
                is_link = not fact[1]
                if fact not in self._first and not (is_link and self._is_late(node)):
                    self._first[fact] = state
                elif self._first.get(fact) != state or state == OUTSIDE:
                    self._add(node, is_content=not is_link)
        referred = [node.text.removeprefix(OF_DATA) for node in nodes.values() if node.text.startswith(OF_DATA)]
        changed = [(path, _OF_DATA) for path in self._data.changed(referred)]
        gathered = [_GATHERED] if any(map(gathers, users_frames(sys._getframe(1)))) else []
        for name, why in (*changed, *gathered, *self._outside.changed()):
            if not self._matches(name):
                self.unstored.setdefault(name, why)
        _let_go(nodes)
        return nodes

    def _is_late(self, node: Node) -> bool:
        """Return whether a path is new on an object that was there before, or a variable in a function that was."""
        if node.parent is None:
            root, _ = node.chain()
            return root.kind in ("variable", "global") and root.owner in self._running
        before = self._before.get(node.parent.path)
        return before is not None and before.is_open and before.identity == node.parent.identity

    def _add(self, node: Node, *, is_content: bool) -> None:
        """Store a change, or name it if it cannot be stored."""
        if node.step[0] == "class" and not is_content:  # MindSpore gives a cell another one of the same name
            return
        place, fact = node.place(is_content=is_content)
        if fact in self._slots or self._is_ignored(node):
            return
        owner = place.parent
        if self._in_graph or (owner is not None and issubclass(type(owner.value), nn.Optimizer)):
            is_of_cell = owner is not None and issubclass(type(owner.value), nn.Cell) and not fact[1]
            if is_of_cell and not issubclass(type(place.value), ms.Tensor):
                self.unstored.setdefault(place.path, _IN_GRAPH)
        chain, why = place.chain(), place.text
        if fact[1] and place.home is not None:
            chain, is_storable = place.home.chain, has_content(place.value)
        else:
            if owner is not None and owner.home is not None:
                root, steps = owner.home.chain
                chain = root, (*steps, place.step)  # type: ignore[arg-type]  # only a root has another
            is_storable = is_settable(chain, None if owner is None else owner.value)
        if is_storable:
            try:
                reached = self._reach()
                places = Places(reached, users_frames(sys._getframe(1)))
                self._packer(reached.known, places).slot(place.value, is_content=fact[1])
            except CannotPackError as error:
                why = str(error)
            else:
                self._slots[fact] = Slot(chain, fact[1], _label(place))
                return
        if not any(part.identity in self._given for part in node.outwards()):  # those say how they are stored
            self.unstored.setdefault(_label(place), why)

    def _packer(self, known: Known, places: Places) -> Packer:
        def reference(value: Any) -> Any:
            """Return how the next process reaches an object that it has too."""
            kind: Any = type(value)
            if issubclass(kind, (types.FunctionType, type)):
                name = value.__module__, value.__qualname__
                if "<" not in name[1] and places.named(*name) is value:
                    return ["named", *name]
            if (home := self._home_of(value)) is not None:
                return ["path", *plain_chain(home.chain)]
            if issubclass(kind, ms.Parameter) and id(value) in known.names:
                return ["stored", known.names[id(value)]]
            return None

        return Packer(reference, MOST_BYTES, places.owner_of, known.stored | self._homes.keys())

    def _put_back(self, slots: Sequence[Any]) -> list[tuple[str, str]]:
        """Make all values, then set them: paths and references lead to what is there before one of them is set."""
        places = Places(self._reach(), users_frames(sys._getframe(1)))
        lost: list[tuple[str, str]] = []
        ready: list[tuple[str, Callable[[Any], Any], Any]] = []
        arrays: list[tuple[str, Any, Any]] = []
        unpacker = Unpacker(places.resolve, places.class_of)
        for path, place, first, packed in slots:
            chain, is_content = chain_of(place), packed[0] == "content"
            try:
                target = places.follow(chain) if is_content else places.setter(chain)
                value = unpacker.slot(first, packed)
                if is_content and not _may_fill(target, value):
                    raise CannotPackError(f"a {type(target).__name__} in this process")
            except CannotPackError as error:
                lost.append((path, str(error)))
                continue
            ready.append((path, partial(refilled, target) if is_content else target, value))
            if is_content and issubclass(type(target), np.ndarray):
                arrays.append((path, target, value))
            text = f"{chain[0]}{''.join(map(str, chain[1]))}"
            self._slots[text, is_content] = Slot(chain, is_content, path)
        for path, put, value in ready:
            try:
                put(value)
            except (AttributeError, TypeError, IndexError, ValueError, KeyError) as error:
                lost.append((path, str(error)))
        for path, array, value in arrays:  # a view has its content by now, if what it shows was stored
            if np.ndarray.tobytes(array) != value.tobytes():
                lost.append((path, "shows an array that is not stored"))
        return lost

    def _differing(self, saved: Mapping[str, Any], nodes: Mapping[str, Node]) -> list[tuple[str, str, str]]:
        """Return what is not as at the first look of the saved run, but for what training changes."""
        changed = [path for path, *_ in (*saved["slots"], *saved["unstored"])]
        epochs = f"int {saved['epochs']}", f"int {self._reach().epochs}"  # training longer is no difference
        texts: dict[str, str] = json.loads(zlib.decompress(saved["first"].tobytes()))
        differing = []
        for path, text in texts.items():
            node = nodes.get(path)
            if node is None or text == node.text or (text, node.text) == epochs:
                continue
            home = self._homes.get(node.identity)  # it may be stored by another path
            is_stored = is_below(path, changed) or (home is not None and is_below(home.path, changed))
            is_mark = is_of_process(node.value) or node.chain()[0].kind == "environment"
            if not (is_stored or is_mark or self._is_ignored(node)):
                differing.append((path, text, node.text))
        return differing

    def _is_ignored(self, node: Node) -> bool:
        """Return whether a node, or what it is a part of, is ignored."""
        return any(self._matches(part.path) for part in node.outwards())

    def _matches(self, path: str) -> bool:
        return any(pattern.fullmatch(path) for pattern in self._patterns)


def _let_go(nodes: Mapping[str, Node]) -> None:
    """Keep no objects, which training may delete."""
    for node in nodes.values():
        node.value = None


def _label(node: Node) -> str:
    """Return the path of the outermost container or iterator around a node."""
    return next(part.path for part in node.outwards() if part.step[0] not in ("item", "key", "part"))


def _may_fill(present: Any, value: Any) -> bool:
    """Return whether an object can get the content of a value."""
    if isinstance(value, (ms.Tensor, np.ndarray)):
        return has_content(present) and (signature_of(present) or ())[1:] == signature_of(value)[1:]
    kinds: dict[type, Any] = {list: (list, deque), bytes: bytearray}  # as `Packer` stores the content of these
    return issubclass(type(present), kinds.get(type(value), type(value)))


def _reached_code(nodes: Mapping[str, Node]) -> Iterator[tuple[str, Any, bool]]:
    for path, node in nodes.items():
        if type(node.value) is types.FunctionType and is_users_function(node.value):
            holder = None if node.parent is None else node.parent.value
            is_wrapped = type(holder) is types.FunctionType and not is_users_function(holder)
            yield path, node.value, is_wrapped
        elif issubclass(type(node.value), nn.Cell):
            yield path, node.value, False
