"""Where parameters are: other memory that no update sees is refused, what was shared is shared after a resume."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops
from support.memory import contents_of
from support.training import Mlp, accumulation_cell, begin_process, samples

import ckptkit as ck
from ckptkit.mindspore.observe.path_lookup import Places
from ckptkit.mindspore.parameters.memory import SharedMemory
from ckptkit.mindspore.parameters.parameters import CellParameters
from ckptkit.tools.interchange import import_weights

ROWS = Tensor(np.full((8, 6), 0.5, np.float32))


def replace_weight(cell):
    cell.network.hidden.weight.set_data(Tensor(cell.network.hidden.weight.asnumpy() * 0.5))


def replace_rate(cell):
    cell.optimizer.learning_rate.set_data(Tensor(0.02, ms.float32))


def load_bias(cell):
    ms.load_param_into_net(cell.network, {"out.bias": Parameter(ROWS[0, :3])})


class OwnOptimizer(nn.Optimizer):
    """Its update is compiled by nobody in PYNATIVE."""

    def __init__(self, weights):
        super().__init__(0.01, weights)

    def construct(self, gradients):
        for weight, gradient in zip(self.parameters, gradients, strict=True):
            ops.assign_sub(weight, self.get_lr() * gradient)
        return True


def batch():
    return [Tensor(column) for column in samples(4).values()]


def train_step():
    network = Mlp()
    return nn.TrainOneStepCell(network, nn.Momentum(network.trainable_params(), 0.1, 0.9))


def compiled_step():
    cell = train_step()
    cell.construct = ms.jit(cell.construct)  # which hides the call of the optimizer
    return cell


def accumulating():
    return accumulation_cell(2)


class Saved:
    def __init__(self, make=accumulating, mode="pynative", **named):
        begin_process(mode=mode)
        self.cell = make()
        self.cell.set_train()
        self.state = ck.StateManager(self.cell, **named)
        self.state.begin("runs/detached")

    def train(self, micro_steps, call=None):
        for _ in range(micro_steps):
            (call or self.cell)(*batch())
            self.state.count_delivered()
            self.state.capture()


def test_memory_that_no_update_sees_fails_the_save():
    for change, name, make in (
        (replace_weight, "hidden.weight", train_step),
        (replace_rate, "learning_rate", compiled_step),
        (load_bias, "out.bias", accumulating),
        (lambda cell: cell.optimizer.moment1[0].set_data(ROWS + 1), "moment1.hidden.weight", accumulating),
        (replace_rate, "learning_rate", accumulating),
    ):
        saved = Saved(make)
        saved.train(3)
        change(saved.cell)
        for _ in range(2):  # no checkpoint has what the next update does not see
            with pytest.raises(ck.ResumeError, match=rf"^{name} got new memory after the first update.*ops\.assign"):
                saved.state.capture()


def test_memory_of_an_optimizer_given_by_name_counts_from_its_first_update():
    network = Mlp()
    optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
    gradients = ms.value_and_grad(network, None, optimizer.parameters)
    saved = Saved(lambda: network, optimizer=optimizer)
    saved.train(3)
    optimizer.learning_rate.set_data(Tensor(0.02, ms.float32))
    saved.train(4, lambda *rows: optimizer(gradients(*rows)[1]))
    optimizer.learning_rate.set_data(Tensor(0.02, ms.float32))
    with pytest.raises(ck.ResumeError, match=r"^optimizer/learning_rate got new memory after the first update"):
        saved.train(4, lambda *rows: optimizer(gradients(*rows)[1]))


def test_what_updates_still_see_is_saved():
    saved = Saved()
    replace_weight(saved.cell)
    saved.train(1)
    replace_weight(saved.cell)  # before the first update, too
    saved.train(3)
    ops.assign(saved.cell.network.hidden.weight, ROWS)
    saved.cell.network.hidden.weight[0] = 1.0
    saved.train(4)
    saved.cell.network.norm.moving_mean.set_data(Tensor(np.ones(8, np.float32)))
    saved.train(4)
    contents = contents_of(saved.state.capture(), "a000001-c0000000006-m0000")
    saved.state.end("enough")  # no update follows
    replace_weight(saved.cell)
    saved.state.capture()
    again = Saved()  # the first update of a process counts, and not that of the run
    again.state.apply(contents)
    again.state.capture()
    replace_weight(again.cell)
    again.train(4)
    own = Saved(lambda: accumulation_cell(2, optimizer=OwnOptimizer))  # that nobody compiles
    own.train(3)
    replace_weight(own.cell)
    own.train(4)
    graph = Saved(mode="graph")
    graph.train(2)
    replace_weight(graph.cell)
    graph.train(2)


def test_memory_given_between_the_first_update_and_its_save_is_refused():
    """Also to a second training of the process, which goes on with the memory of the first."""
    saved = Saved()
    saved.cell(*batch())
    saved.cell(*batch())
    saved.state.count_delivered(2)
    replace_rate(saved.cell)
    for state in (saved.state, ck.StateManager(saved.cell)):
        with pytest.raises(ck.ResumeError, match=r"^learning_rate got new memory"):
            state.capture()


def test_mindspore_still_does_not_see_new_memory():
    """Were this mended, nothing would have to be refused; a graph sees it."""
    for mode, is_seen in (("pynative", False), ("graph", True)):
        begin_process(mode=mode)
        cell = accumulating().set_train()
        cell(*batch()), cell(*batch())
        replace_weight(cell)
        before = cell.network.hidden.weight.asnumpy().copy()
        cell(*batch()), cell(*batch())
        assert np.array_equal(cell.network.hidden.weight.asnumpy(), before) != is_seen, mode


# Parameters with one memory


def full(value):
    return Tensor(np.full(3, value, np.float32))


class Net(nn.Cell):
    def __init__(self, name, value):
        super().__init__()
        self.w = Parameter(full(value), name=f"{name}.w")


def job(root, *, shares, named):
    """A student, its teacher, a state of both, and a manager at ``root``; ``named`` gives the teacher by name."""
    student, teacher = Net("student", 1), Net("teacher", 2)
    if shares:
        teacher.w.set_data(student.w.data)
    state = ck.StateManager([student], teacher=teacher) if named else ck.StateManager([student, teacher])
    return student, teacher, state, ck.CheckpointManager(root)


def values(*nets):
    return [float(one.w.asnumpy()[0]) for one in nets]


def saved(root, *, shares, named, put):
    student, teacher, state, manager = job(root, shares=shares, named=named)
    with manager:
        manager.restore(state)
        put(student, teacher)
        state.count_delivered(1)
        manager.save(state).result()


def part(student, teacher):
    teacher.w.set_data(full(7))
    ops.assign(student.w, full(5))


def join(student, teacher):
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
        ops.assign(student.w, full(9))
        assert values(student, teacher) == [9, 7]


@pytest.mark.parametrize("named", [False, True])
def test_what_had_one_memory_at_the_save_has_one(tmp_path, named):
    saved(tmp_path, shares=False, named=named, put=join)
    student, teacher, state, manager = job(tmp_path, shares=False, named=named)
    with manager:
        manager.restore(state)
        assert values(student, teacher) == [1, 1]
        ops.assign(student.w, full(9))
        assert values(student, teacher) == [9, 9]
        state.count_delivered(2)
        manager.save(state).result()
    again = job(tmp_path, shares=False, named=named)
    again[3].restore(again[2])
    assert again[0].w.data_ptr() == again[1].w.data_ptr()


def test_imported_weights_part_what_they_give_different_values(tmp_path):
    """A tie by memory stays one if the file gives both the same, or one of them nothing."""
    for number, (of_teacher, named) in enumerate([(7, False), (5, False), (None, True)]):
        file, root = tmp_path / f"{number}.ckpt", tmp_path / f"run-{number}"
        held = {"student.w": 5} if of_teacher is None else {"student.w": 5, "teacher.w": of_teacher}
        ms.save_checkpoint([{"name": name, "data": full(value)} for name, value in held.items()], str(file))
        import_weights(file, root)
        student, teacher, state, manager = job(root, shares=True, named=named)
        with manager:
            manager.restore(state)
            assert values(student, teacher) == [5, of_teacher or 5]
            assert (student.w.data_ptr() == teacher.w.data_ptr()) == (of_teacher != 7)


def shared_memory(cells, by_name=dict):
    parameters = CellParameters(cells, None)
    shared = SharedMemory(parameters, by_name)
    parameters.leaves(at_boundary=False)
    return shared, parameters


def groups(*cells, **named):
    by_name = {f"{name}/{one.w.name}": one.w for name, one in named.items()}
    return shared_memory(cells, lambda: by_name)[0].groups()


def test_groups_are_of_different_parameters_with_all_of_their_memory_in_common():
    one, other, third = Net("one", 1), Net("other", 2), Net("third", 3)
    assert groups(one, other, third=third) == []
    assert groups(one, it=one) == []  # one parameter by two names
    other.w.set_data(one.w)
    third.w.set_data(one.w.data)
    assert groups(one, other, third=third) == [["one.w", "other.w", "third/third.w"]]
    assert groups(third, one=one) == [["one/one.w", "third.w"]]
    empty = [Net(name, 0) for name in "ab"]
    for net in empty:
        net.w = Parameter(Tensor(np.zeros(0, np.float32)), name=net.w.name)
    assert groups(*empty) == []


def test_joining_and_parting_in_one_restore():
    """What left a group must not be parted from its new one; a parameter joins a buffer, which keeps its memory."""
    for names, pairs, wanted in (
        ("abcd", [(1, 0), (3, 2)], ["a.w", "c.w"]),
        ("cab", [(0, 1)], ["a.w", "b.w"]),
    ):
        nets = [Net(name, value) for value, name in enumerate(names)]
        for target, source in pairs:
            nets[target].w.set_data(nets[source].w)
        others = [net for net in nets if net.w.name not in wanted]
        before = values(*others)
        shared, parameters = shared_memory(nets)
        assert len(shared.groups()) == len(pairs)
        assert shared.restore([wanted])
        parameters.leaves(at_boundary=False)
        assert shared.groups() == [wanted]
        assert not shared.restore([wanted])
        assert values(*others) == before
    net = Net("a", 1)
    net.register_buffer("z", full(2))
    place = net.z.data_ptr()
    assert shared_memory([net])[0].restore([["a.w", "z"]])
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
                teacher.w.set_data(full(7))
            manager.save(state).result()
            told = "teacher/teacher.w got new memory after the first micro-step"
            assert shown().count(told) == (step > 1 and mode == ms.GRAPH_MODE)


class Teacher:
    """Holds a network of its own, and restores it in place."""

    def __init__(self, student):
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

    def __init__(self, net, kind):
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
    places = Places(state.examination._reached(), [])
    memory = net.w.asnumpy()
    assert [places.owner_of(array) for array in (memory, memory[1:], memory.copy())] == ["net.w", "net.w", None]
