"""Parameters with one memory: a resumed training shares what the interrupted one shared, and nothing else."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops
from support.process import python

import ckptkit as ck
from ckptkit.mindspore.parameters.memory import SharedMemory
from ckptkit.mindspore.parameters.parameters import CellParameters
from ckptkit.mindspore.state.sources import Sources


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
    """Both got the bits of the one that was written last."""
    saved(tmp_path, shares=True, named=named, put=part)
    student, teacher, state, manager = job(tmp_path, shares=True, named=named)
    assert student.w.data_ptr() == teacher.w.data_ptr()
    with manager:
        manager.restore(state)
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


def test_what_a_script_joins_between_restore_and_loop_is_parted_again(tmp_path):
    saved(tmp_path, shares=False, named=False, put=part)
    student, teacher, state, manager = job(tmp_path, shares=False, named=False)
    with manager:
        manager.restore(state)
        join(student, teacher)
        state.start.undo_changes()
        assert values(student, teacher) == [5, 7]
        assert student.w.data_ptr() != teacher.w.data_ptr()


@pytest.mark.parametrize("apart", [True, False])
def test_imported_weights_part_what_they_give_different_values(tmp_path, apart):
    """A tie by memory stays one if the file gives both the same."""
    weights = {"student.w": np.full(3, 5, np.float32), "teacher.w": np.full(3, 7 if apart else 5, np.float32)}
    ms.save_checkpoint([{"name": name, "data": Tensor(one)} for name, one in weights.items()], str(tmp_path / "w.ckpt"))
    python("-m", "ckptkit", "import", str(tmp_path / "w.ckpt"), str(tmp_path / "run"))
    student, teacher, state, manager = job(tmp_path / "run", shares=True, named=False)
    with manager:
        manager.restore(state)
        assert values(student, teacher) == [5, 7 if apart else 5]
        assert (student.w.data_ptr() == teacher.w.data_ptr()) == (not apart)


def test_imported_weights_are_those_of_a_tied_object_too(tmp_path):
    """A file of weights gives an object given by name nothing else."""
    ms.save_checkpoint([{"name": "student.w", "data": Tensor(np.full(3, 5, np.float32))}], str(tmp_path / "w.ckpt"))
    python("-m", "ckptkit", "import", str(tmp_path / "w.ckpt"), str(tmp_path / "run"))
    student, teacher, state, manager = job(tmp_path / "run", shares=True, named=True)
    with manager:
        manager.restore(state)
        assert values(student, teacher) == [5, 5]
        assert student.w.data_ptr() == teacher.w.data_ptr()


def groups(*cells: nn.Cell, **named: nn.Cell) -> list[list[str]]:
    parameters = CellParameters(cells, None)
    by_name = {f"{name}/{one.w.name}": one.w for name, one in named.items()}
    shared = SharedMemory(parameters, lambda: by_name)
    parameters.leaves(at_boundary=False)
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
    nets = [Net(name, value) for name, value in zip("abcd", range(4), strict=True)]
    nets[1].w.set_data(nets[0].w)
    nets[3].w.set_data(nets[2].w)
    parameters = CellParameters(nets, None)
    shared = SharedMemory(parameters, dict)
    parameters.leaves(at_boundary=False)
    assert shared.restore([["a.w", "c.w"]])
    parameters.leaves(at_boundary=False)
    assert shared.groups() == [["a.w", "c.w"]]
    assert not shared.restore([["a.w", "c.w"]])
    assert values(nets[1], nets[3]) == [0, 2]


@pytest.mark.parametrize("mode", [ms.GRAPH_MODE, ms.PYNATIVE_MODE])
def test_new_memory_that_a_compiled_function_does_not_see_is_named(tmp_path, mode, shown):
    """In GRAPH mode, which compiles the function of a gradient."""
    ms.set_context(mode=mode)
    _, teacher, state, manager = job(tmp_path, shares=False, named=True)
    with manager:
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


def test_object_that_restores_itself_into_a_students_memory_leaves_the_student_as_it_was(tmp_path):
    for part_them in (True, False):
        student = Net("student", 1)
        teacher = Teacher(student)
        state = ck.StateManager([student], teacher=teacher)
        with ck.CheckpointManager(tmp_path) as manager:
            manager.restore(state)
            if part_them:
                part(student, teacher.net)
                state.count_delivered(1)
                manager.save(state).result()
    assert values(student, teacher.net) == [5, 7]
    assert student.w.data_ptr() != teacher.net.w.data_ptr()


def test_memory_is_looked_at_again_between_joining_and_parting():
    """The groups of a save before are not those of now: what left one of them must not be parted from its new one."""
    nets = [Net(name, value) for name, value in zip("cab", range(3), strict=True)]
    nets[0].w.set_data(nets[1].w)
    parameters = CellParameters(nets, None)
    shared = SharedMemory(parameters, dict)
    parameters.leaves(at_boundary=False)
    assert shared.groups() == [["a.w", "c.w"]]
    shared.restore([["a.w", "b.w"]])
    parameters.leaves(at_boundary=False)
    assert shared.groups() == [["a.w", "b.w"]]


def test_parameter_joins_a_buffer_which_keeps_its_memory():
    net = Net("a", 1)
    net.register_buffer("z", Tensor(np.full(3, 2, np.float32)))
    parameters = CellParameters([net], None)
    shared = SharedMemory(parameters, dict)
    parameters.leaves(at_boundary=False)
    assert shared.restore([["a.w", "z"]])
    assert net.w.data_ptr() == net.z.data_ptr()


def test_object_that_restores_itself_again_before_the_loop_leaves_the_student_as_it_was(tmp_path):
    """A script that joins both after the restore had the teacher's weights in its student."""
    for resumed in (False, True):
        student = Net("student", 1)
        teacher = Teacher(student)
        state = ck.StateManager([student], teacher=teacher)
        with ck.CheckpointManager(tmp_path) as manager:
            manager.restore(state)
            if not resumed:
                part(student, teacher.net)
                state.count_delivered(1)
                manager.save(state).result()
    join(student, teacher.net)
    state.start.undo_changes()
    assert values(student, teacher.net) == [5, 7]


def test_new_memory_ends_no_strict_run_that_has_saved(tmp_path, shown):
    """An average by `set_data` is read by no compiled function, and the run is exact."""
    ms.set_context(mode=ms.GRAPH_MODE)
    student, average = Net("student", 1), Net("average", 2)
    state = ck.StateManager([student], average=average, strict=True)

    def end_step(step):
        state.count_delivered(step)
        manager.step(state)
        manager.save(state).result()

    with ck.CheckpointManager(tmp_path) as manager:
        manager.restore(state)
        end_step(1)
        average.w.set_data(Tensor(np.full(3, 7, np.float32)))
        end_step(2)
    assert "average/average.w got new memory after the first micro-step" in shown()


@pytest.mark.parametrize("teacher_first", [True, False])
def test_object_that_restores_itself_into_the_memory_of_another_object_leaves_that_as_it_was(tmp_path, teacher_first):
    for resumed in (False, True):
        average = Net("average", 1)
        teacher = Teacher(average)
        named = {"teacher": teacher, "average": average} if teacher_first else {"average": average, "teacher": teacher}
        state = ck.StateManager([Net("student", 2)], **named)
        with ck.CheckpointManager(tmp_path) as manager:
            manager.restore(state)
            if not resumed:
                part(average, teacher.net)
                state.count_delivered(1)
                manager.save(state).result()
    assert values(average, teacher.net) == [5, 7]
    state.start.undo_changes()
    assert values(average, teacher.net) == [5, 7]


class Best:
    """Keeps weights, with or without a copy; or gives those of the network."""

    def __init__(self, net: Net, kind: str) -> None:
        self.net, self.kind = net, kind
        self.weights = [net.w.asnumpy().copy() if kind == "copied" else net.w.asnumpy()[1:]]

    def state_dict(self):
        return {"weights": [self.net.w.asnumpy()] if self.kind == "made" else self.weights}

    def load_state_dict(self, state):
        self.weights = state["weights"]


@pytest.mark.parametrize("kind", ["held", "copied", "made", "attribute"])
def test_arrays_that_are_the_memory_of_a_parameter_are_named(tmp_path, kind, shown):
    """After a resume, they are arrays of their own, and do not follow the parameter any more."""
    net = Net("net", 1)
    best = Best(net, kind)
    state = ck.StateManager([net], best=ck.attributes(best, "weights") if kind == "attribute" else best)
    with ck.CheckpointManager(tmp_path) as manager:
        manager.restore(state)
        for step in range(1, 3):
            state.count_delivered(step)
            manager.save(state).result()
    words = "best holds arrays that are the memory of net.w, so that they change with training"
    assert shown().count(words) == (kind in ("held", "attribute"))


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("named", [False, True])
def test_checkpoint_that_does_not_say_keeps_the_tie_of_equal_values(tmp_path, monkeypatch, named, apart):
    """Such as one of an earlier version: parted, a tied weight would train alone, in silence."""
    with monkeypatch.context() as patched:
        sections = Sources.sections

        def without(self, *args):
            taken = sections(self, *args)
            del taken["train"]["shared_memory"]
            return taken

        patched.setattr(Sources, "sections", without)
        saved(tmp_path, shares=True, named=named, put=part if apart else lambda student, teacher: None)
    student, teacher, state, manager = job(tmp_path, shares=True, named=named)
    manager.restore(state)
    assert values(student, teacher) == ([5, 7] if apart else [1, 1])
    assert (student.w.data_ptr() == teacher.w.data_ptr()) == (not apart)
