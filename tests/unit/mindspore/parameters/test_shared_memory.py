"""Parameters with one memory: a resumed training shares what the interrupted one shared, and nothing else."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

import ckptkit as ck
from ckptkit.mindspore.parameters.memory import SharedMemory
from ckptkit.mindspore.parameters.parameters import CellParameters
from ckptkit.tools.interchange import import_weights


class Net(nn.Cell):
    def __init__(self, name: str, value: float) -> None:
        super().__init__()
        self.w = Parameter(Tensor(np.full(3, value, np.float32)), name=f"{name}.w")


def job(root, *, shares: bool, named: bool):
    """A student, its teacher, a state of both, and a manager at ``root``; ``named`` gives the teacher by name."""
    student, teacher = Net("student", 1), Net("teacher", 2)
    if shares:
        teacher.w.set_data(student.w.data)
    state = ck.StateManager([student], teacher=teacher) if named else ck.StateManager([student, teacher])
    return student, teacher, state, ck.CheckpointManager(root)


def values(*nets: Net) -> list[float]:
    return [float(one.w.asnumpy()[0]) for one in nets]


def saved(root, *, shares: bool, named: bool, put) -> None:
    """A run in which ``put`` makes the values, after which a checkpoint is saved."""
    student, teacher, state, manager = job(root, shares=shares, named=named)
    with manager:
        manager.restore(state)
        put(student, teacher)
        state.count_delivered(1)
        manager.save(state).result()


def part(student: Net, teacher: Net) -> None:
    teacher.w.set_data(Tensor(np.full(3, 7, np.float32)))
    ops.assign(student.w, Tensor(np.full(3, 5, np.float32)))


def join(student: Net, teacher: Net) -> None:
    ms.load_param_into_net(teacher, {"teacher.w": student.w})


@pytest.mark.parametrize("named", [False, True])
def test_what_was_apart_at_the_save_is_apart(tmp_path, named):
    """Both got the bits of the one that was written last; also if the script joins them before its loop."""
    saved(tmp_path, shares=True, named=named, put=part)
    student, teacher, state, manager = job(tmp_path, shares=True, named=named)
    assert student.w.data_ptr() == teacher.w.data_ptr()
    with manager:
        manager.restore(state)
        assert values(student, teacher) == [5, 7]
        join(student, teacher)
        state.start.undo_changes()
        assert values(student, teacher) == [5, 7]
        ops.assign(student.w, Tensor(np.full(3, 9, np.float32)))
        assert values(student, teacher) == [9, 7]


@pytest.mark.parametrize("named", [False, True])
def test_what_had_one_memory_at_the_save_has_one(tmp_path, named):
    saved(tmp_path, shares=False, named=named, put=join)
    student, teacher, state, manager = job(tmp_path, shares=False, named=named)
    with manager:
        manager.restore(state)
        assert values(student, teacher) == [1, 1]
        ops.assign(student.w, Tensor(np.full(3, 9, np.float32)))
        assert values(student, teacher) == [9, 9]
        state.count_delivered(2)
        manager.save(state).result()
    again = job(tmp_path, shares=False, named=named)
    again[3].restore(again[2])
    assert again[0].w.data_ptr() == again[1].w.data_ptr()


def test_imported_weights_part_what_they_give_different_values(tmp_path):
    """A tie by memory stays one if the file gives both the same, or one of them nothing."""
    for number, (of_teacher, named) in enumerate([(7, False), (5, False), (None, True)]):
        weights = {"student.w": 5, "teacher.w": of_teacher}
        file, root = tmp_path / f"{number}.ckpt", tmp_path / f"run-{number}"
        held = [
            {"name": name, "data": Tensor(np.full(3, value, np.float32))}
            for name, value in weights.items()
            if value is not None
        ]
        ms.save_checkpoint(held, str(file))
        import_weights(file, root)
        student, teacher, state, manager = job(root, shares=True, named=named)
        with manager:
            manager.restore(state)
            assert values(student, teacher) == [5, of_teacher or 5]
            assert (student.w.data_ptr() == teacher.w.data_ptr()) == (of_teacher != 7)


def shared_memory(cells, by_name=dict) -> tuple[SharedMemory, CellParameters]:
    parameters = CellParameters(cells, None)
    shared = SharedMemory(parameters, by_name)
    parameters.leaves(at_boundary=False)
    return shared, parameters


def groups(*cells: nn.Cell, **named: nn.Cell) -> list[list[str]]:
    by_name = {f"{name}/{one.w.name}": one.w for name, one in named.items()}
    shared, _ = shared_memory(cells, lambda: by_name)
    assert shared.groups() == shared.groups()
    return shared.groups()


def test_groups_are_of_different_parameters_with_all_of_their_memory_in_common():
    one, other, third = Net("one", 1), Net("other", 2), Net("third", 3)
    assert groups(one, other, third=third) == []
    assert groups(one, it=one) == []  # one parameter by two names
    other.w.set_data(one.w)
    third.w.set_data(one.w.data)
    assert groups(one, other, third=third) == [["one.w", "other.w", "third/third.w"]]
    assert groups(third, one=one) == [["one/one.w", "third.w"]]
    empty = [nn.CellList([nn.Cell()]) for _ in range(2)]
    for number, cell in enumerate(empty):
        cell.e = Parameter(Tensor(np.zeros(0, np.float32)), name=f"e{number}")
    assert groups(*empty) == []


def test_joining_and_parting_in_one_restore():
    """What left a group must not be parted from its new one."""
    for names, pairs, wanted in (
        ("abcd", [(1, 0), (3, 2)], ["a.w", "c.w"]),
        ("cab", [(0, 1)], ["a.w", "b.w"]),
    ):
        nets = [Net(name, value) for value, name in enumerate(names)]
        for target, source in pairs:
            nets[target].w.set_data(nets[source].w)
        before = values(*nets)
        shared, parameters = shared_memory(nets)
        assert len(shared.groups()) == len(pairs)
        assert shared.restore([wanted])
        parameters.leaves(at_boundary=False)
        assert shared.groups() == [wanted]
        assert not shared.restore([wanted])
        assert [values(net) for net in nets if net.w.name not in wanted] == [
            [value] for net, value in zip(nets, before, strict=True) if net.w.name not in wanted
        ]


def test_parameter_joins_a_buffer_which_keeps_its_memory():
    net = Net("a", 1)
    net.register_buffer("z", Tensor(np.full(3, 2, np.float32)))
    shared, _ = shared_memory([net])
    place = net.z.data_ptr()
    assert shared.restore([["a.w", "z"]])
    assert net.w.data_ptr() == net.z.data_ptr() == place


@pytest.mark.parametrize("mode", [ms.GRAPH_MODE, ms.PYNATIVE_MODE])
def test_new_memory_that_a_compiled_function_does_not_see_is_named(tmp_path, mode, shown):
    """In GRAPH mode, which compiles the function of a gradient; it ends no strict run, which may be exact."""
    ms.set_context(mode=mode)
    student, teacher = Net("student", 1), Net("teacher", 2)
    state = ck.StateManager([student], teacher=teacher, strict=True)
    with ck.CheckpointManager(tmp_path) as manager:
        manager.restore(state)
        for step in range(1, 4):
            state.count_delivered(step)
            manager.step(state)
            if step == 2:
                teacher.w.set_data(Tensor(np.full(3, 7, np.float32)))
            manager.save(state).result()
            told = "teacher/teacher.w got new memory after the first micro-step"
            assert shown().count(told) == (step > 1 and mode == ms.GRAPH_MODE)


class Teacher:
    """Holds a network of its own, and restores it in place."""

    def __init__(self, student: Net) -> None:
        self.net = Net("teacher", 2)
        self.net.w.set_data(student.w.data)

    def state_dict(self):
        return {"w": self.net.w.asnumpy()}

    def load_state_dict(self, state):
        ops.assign(self.net.w, Tensor(state["w"]))


@pytest.mark.parametrize("place", ["cell", "named before", "named after"])
def test_object_that_restores_itself_into_the_memory_of_another_leaves_that_as_it_was(tmp_path, place):
    """Of a cell that is trained, or given by name; also if the script joins both before its loop."""
    for resumed in (False, True):
        student = Net("student", 1)
        named = {"teacher": (teacher := Teacher(student))}
        if place != "cell":
            named = {"student": student, **named} if place == "named before" else {**named, "student": student}
        state = ck.StateManager([student if place == "cell" else Net("other", 2)], **named)
        with ck.CheckpointManager(tmp_path) as manager:
            manager.restore(state)
            if not resumed:
                part(student, teacher.net)
                state.count_delivered(1)
                manager.save(state).result()
    assert values(student, teacher.net) == [5, 7]
    assert student.w.data_ptr() != teacher.net.w.data_ptr()
    if place == "cell":
        join(student, teacher.net)
    state.start.undo_changes()
    assert values(student, teacher.net) == [5, 7]


class Best:
    """Keeps weights, with or without a copy; or gives those of the network."""

    def __init__(self, net: Net, kind: str) -> None:
        self.net, self.kind = net, kind
        self.weights = [net.w.asnumpy().copy() if kind == "copied" else net.w.asnumpy()[1:]]

    def state_dict(self):
        return {"weights": [self.net.w.asnumpy()] if self.kind == "made" else self.weights}

    def load_state_dict(self, state):
        self.weights = state["weights"]


def test_arrays_that_are_the_memory_of_a_parameter_are_named(tmp_path, shown):
    """After a resume, they are arrays of their own, and do not follow the parameter any more."""
    named = 0
    for kind in ("copied", "made", "held", "attribute"):
        net = Net("net", 1)
        best = Best(net, kind)
        state = ck.StateManager([net], best=ck.attributes(best, "weights") if kind == "attribute" else best)
        with ck.CheckpointManager(tmp_path / kind) as manager:
            manager.restore(state)
            for step in range(1, 3):
                state.count_delivered(step)
                manager.save(state).result()
        named += kind in ("held", "attribute")
        words = "best holds arrays that are the memory of net.w, so that they change with training"
        assert shown().count(words) == named, kind
