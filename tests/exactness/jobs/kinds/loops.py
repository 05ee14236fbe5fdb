"""Loops of one's own, with more than one thing to train or more than one way to do it."""

from __future__ import annotations

import collections

import mindspore as ms
import numpy as np
from mindspore import nn, ops
from mindspore.experimental import optim

import ckptkit as ck
from exactness.jobs.job import job
from exactness.jobs.outcome import Exact, Named, Refused, Told
from exactness.jobs.parts import EPOCHS, FEATURES, K, Loss, Net, accumulating, adam, rows, slices


def renamed(cell, prefix):
    for parameter in cell.get_parameters():
        parameter.name = f"{prefix}.{parameter.name}"
    return cell.set_train()


class Pair:
    """Generator and critic, and a step of each."""

    def __init__(self):
        self.maker = renamed(nn.Dense(4, FEATURES), "maker")
        self.critic = renamed(nn.SequentialCell(nn.Dense(FEATURES, 8), nn.LeakyReLU(), nn.Dense(8, 1)), "critic")
        self.makes = nn.Adam(self.maker.trainable_params(), 1e-2)
        self.judges = nn.RMSProp(self.critic.trainable_params(), 1e-2)
        self.maker_gradients = ms.value_and_grad(self.maker_loss, None, self.makes.parameters)
        self.critic_gradients = ms.value_and_grad(self.critic_loss, None, self.judges.parameters)

    @property
    def cells(self):
        return [self.maker, self.critic, self.makes]

    def maker_loss(self, z):
        return -self.critic(self.maker(z)).mean()

    def critic_loss(self, x, z):
        return self.critic(self.maker(z)).mean() - self.critic(x).mean() + (self.critic(x) ** 2).mean()

    def train_critic(self, x, z):
        loss, gradients = self.critic_gradients(x, z)
        self.judges(ops.clip_by_global_norm(gradients, 1.0))
        return loss

    def train_maker(self, z):
        loss, gradients = self.maker_gradients(z)
        self.makes(gradients)
        return loss


@job(Named("nn.RMSProp", differs=None), "pynative")
def adversarial_pair(run):
    pair = Pair()

    def step(x, y):
        z = ops.randn(x.shape[0], 4)
        return pair.train_critic(x, z), pair.train_maker(z)

    run.loop(pair.cells, ck.data.resumable(slices(), EPOCHS), step, judges=pair.judges)


@job(Refused(("global_step", "by name")), "pynative", default=True)
def adversarial_pair_in_one_list(run):
    pair = Pair()
    run.loop([*pair.cells, pair.judges], ck.data.resumable(slices(), EPOCHS), lambda x, y: None)


@job(Named("nn.RMSProp", differs=None), "pynative")
def adversarial_pair_with_an_optimizer_renamed(run):
    pair = Pair()
    pair.judges.update_parameters_name("judges.")
    cells = [*pair.cells, pair.judges]

    def step(x, y):
        z = ops.randn(x.shape[0], 4)
        return pair.train_critic(x, z), pair.train_maker(z)

    run.loop(cells, ck.data.resumable(slices(), EPOCHS), step)


@job(Named("nn.RMSProp", differs=None), "pynative")
def maker_trained_by_the_number_of_batches(run):
    pair = Pair()
    batches = ck.data.resumable(slices(), EPOCHS)
    with run.manager() as manager:
        state = ck.StateManager(pair.cells, batches, judges=pair.judges)
        point = manager.restore(state)
        run.begin(point)
        for at, (x, y) in enumerate(batches, point.batches_delivered):
            z = ms.Tensor(np.random.standard_normal((x.shape[0], 4)), ms.float32)
            losses = [pair.train_critic(x, z)]
            if at % 3 == 2:
                losses.append(pair.train_maker(z))
            run.step((x, y), losses, cells=[*pair.cells, pair.judges])
            manager.step(state)


@job(Told("since"), "pynative")
def maker_trained_by_a_counter_of_the_loop(run):
    pair = Pair()
    since = 0
    batches = ck.data.resumable(slices(), EPOCHS)
    with run.manager() as manager:
        state = ck.StateManager(pair.cells, batches, judges=pair.judges)
        run.begin(manager.restore(state))
        for x, y in batches:
            z = ms.Tensor(np.random.standard_normal((x.shape[0], 4)), ms.float32)
            losses = [pair.train_critic(x, z)]
            since += 1
            if since == 5:
                since = 0
                losses.append(pair.train_maker(z))
            run.step((x, y), losses, cells=[*pair.cells, pair.judges])
            manager.step(state)


@job(Exact(), "pynative")
def model_agnostic_meta_learning(run):
    network = Net().set_train()
    optimizer = adam(network)
    weights = optimizer.parameters

    gradients = ms.value_and_grad(lambda x, y: ops.cross_entropy(network(x), y), None, weights)

    def step(x, y):
        before = [weight.asnumpy().copy() for weight in weights]
        for weight, grad in zip(weights, gradients(x[:3], y[:3])[1], strict=True):
            ops.assign_sub(weight, 0.1 * grad)
        loss, grads = gradients(x[3:], y[3:])
        for weight, value in zip(weights, before, strict=True):
            ops.assign(weight, ms.Tensor(value))
        optimizer(grads)
        return loss

    run.loop([network, optimizer], ck.data.resumable(slices(), EPOCHS), step)


class Reptile:
    """The weights that each task begins with, as arrays, and how far the task is."""

    def __init__(self, weights):
        self.weights = weights
        self.start = [weight.asnumpy().copy() for weight in weights]
        self.inner = 0

    def stepped(self):
        self.inner += 1
        if self.inner == 4:
            self.inner = 0
            self.start = [
                begin + 0.5 * (w.asnumpy() - begin) for begin, w in zip(self.start, self.weights, strict=True)
            ]
            for weight, begin in zip(self.weights, self.start, strict=True):
                ops.assign(weight, ms.Tensor(begin))


class StoredReptile(Reptile):
    def state_dict(self):
        return {"start": self.start, "inner": self.inner}

    def load_state_dict(self, state):
        self.start, self.inner = [one.copy() for one in state["start"]], state["inner"]


def reptile(run, make, named):
    loss = Loss().set_train()
    optimizer = nn.SGD(loss.trainable_params(), 0.1)
    gradients = ms.value_and_grad(loss, None, optimizer.parameters)
    meta = make(list(optimizer.parameters))

    def step(x, y):
        value, grads = gradients(x, y)
        optimizer(grads)
        meta.stepped()
        return value

    run.loop([loss, optimizer], ck.data.resumable(slices(), EPOCHS), step, **({"meta": meta} if named else {}))


@job(Exact(), "pynative")
def meta_weights_stored_as_arrays(run):
    reptile(run, StoredReptile, named=True)


@job(Told("meta"), "pynative")
def meta_weights_forgotten(run):
    reptile(run, Reptile, named=False)


@job(Exact(), "pynative")
def two_networks_that_teach_each_other(run):
    networks = [renamed(Net(), name) for name in ("first", "second")]
    optimizers = [nn.Momentum(networks[0].trainable_params(), 0.05, 0.9), nn.Adam(networks[1].trainable_params(), 1e-2)]

    def forward(mine, other, x, y):
        soft = ops.stop_gradient(ops.softmax(networks[other](x)))
        out = networks[mine](x)
        return ops.cross_entropy(out, y) + ops.cross_entropy(out, soft)

    gradients = [ms.value_and_grad(forward, None, optimizer.parameters) for optimizer in optimizers]

    def step(x, y):
        losses = []
        for mine in range(2):
            loss, grads = gradients[mine](mine, 1 - mine, x, y)
            optimizers[mine](grads)
            losses.append(loss)
        return losses

    run.loop([*networks, optimizers[0]], ck.data.resumable(slices(), EPOCHS), step, other=optimizers[1])


def accumulated(run, make):
    """Accumulation by hand: K grows with the epochs."""
    loss = Loss().set_train()
    optimizer = adam(loss)
    gradients = ms.value_and_grad(loss, None, optimizer.parameters)
    sums = make(optimizer)
    batches = ck.data.resumable(slices(), EPOCHS)
    with run.manager() as manager:
        cells = [loss, optimizer, *([sums] if isinstance(sums, nn.Cell) else [])]
        state = ck.StateManager(cells, batches)
        point = manager.restore(state)
        run.begin(point)
        for at, (x, y) in enumerate(batches, point.batches_delivered + 1):
            value, grads = gradients(x, y)
            sums.add(grads)
            if at % (2 if at <= 8 else 5) == 0:
                optimizer(sums.take())
            run.step((x, y), value, cells=[loss, optimizer], sums=list(sums.sums))
            manager.step(state)


class ListOfSums:
    def __init__(self, optimizer):
        self.sums = [ops.zeros_like(weight) for weight in optimizer.parameters]

    def add(self, grads):
        self.sums = [total + grad for total, grad in zip(self.sums, grads, strict=True)]

    def take(self):
        taken = tuple(self.sums)
        self.sums = [ops.zeros_like(one) for one in taken]
        return taken


class CellOfSums(nn.Cell):
    def __init__(self, optimizer):
        super().__init__()
        self.sums = optimizer.parameters.clone("sums", "zeros")

    def add(self, grads):
        for total, grad in zip(self.sums, grads, strict=True):
            total.set_data(total + grad)

    def take(self):
        taken = tuple(ms.Tensor(total.asnumpy()) for total in self.sums)
        for total in self.sums:
            total.set_data(ops.zeros_like(total))
        return taken


@job(Exact(), "pynative")
def accumulation_by_hand_in_a_cell(run):
    accumulated(run, CellOfSums)


@job(Told("sums"), "pynative")
def accumulation_by_hand_in_a_list(run):
    accumulated(run, ListOfSums)


class World:
    """A walk on a line that rewards the right end."""

    def __init__(self):
        self.rng = np.random.default_rng(6)
        self.place = 0.0

    def moved(self, right):
        self.place += (0.3 if right else -0.3) + self.rng.normal(0, 0.1)
        done = abs(self.place) > 1
        reward = float(self.place > 1)
        if done:
            self.place = 0.0
        return reward, done

    def state_dict(self):
        return {"rng": self.rng.bit_generator.state, "place": self.place}

    def load_state_dict(self, state):
        self.rng.bit_generator.state, self.place = state["rng"], state["place"]


class Memory:
    """What was seen, of which batches are drawn."""

    def __init__(self):
        self.rows = collections.deque(maxlen=30)

    def state_dict(self):
        return {"rows": list(self.rows)}

    def load_state_dict(self, state):
        self.rows = collections.deque(state["rows"], maxlen=30)


def reinforced(run, stored):
    """A loop that makes its data with the network it trains."""
    value = nn.SequentialCell(nn.Dense(1, 8), nn.Tanh(), nn.Dense(8, 2)).set_train()
    optimizer = adam(value)
    world, memory = World(), Memory()

    def forward(place, move, target):
        return ((value(place) * move).sum(1) - target).pow(2).mean()

    gradients = ms.value_and_grad(forward, None, optimizer.parameters)
    with run.manager() as manager:
        state = ck.StateManager([value, optimizer], **({"world": world, "memory": memory} if stored else {}))
        point = manager.restore(state)
        run.begin(point)
        for _ in range(point.batches_delivered, 16):
            for _ in range(4):
                before = world.place
                guess = value(ms.Tensor([[before]], ms.float32)).asnumpy()[0]
                right = int(guess.argmax()) if np.random.random() > 0.2 else int(np.random.random() > 0.5)
                reward, done = world.moved(right)
                memory.rows.append((before, right, reward, world.place, done))
            rows = [memory.rows[i] for i in np.random.randint(0, len(memory.rows), 6)]
            place, right, reward, after, done = (np.array(column, np.float32) for column in zip(*rows, strict=True))
            best = value(ms.Tensor(after[:, None])).asnumpy().max(1)
            target = ms.Tensor(reward + 0.9 * best * (1 - done))
            batch = (ms.Tensor(place[:, None]), ms.Tensor(np.eye(2, dtype=np.float32)[right.astype(int)]), target)
            loss, grads = gradients(*batch)
            optimizer(grads)
            state.count_delivered()
            run.step(batch, loss, value=value, memory=list(memory.rows))
            manager.step(state)


@job(Exact(), "pynative")
def value_learning_from_a_memory(run):
    reinforced(run, stored=True)


@job(Told("memory"), "pynative")
def value_learning_from_a_forgotten_memory(run):
    reinforced(run, stored=False)


@job(Exact(), "graph")
def evaluation_within_the_loop(run):
    cell = accumulating()
    network = cell.network
    batches = ck.data.resumable(slices(), EPOCHS)
    with run.manager() as manager:
        state = ck.StateManager(cell, batches)
        point = manager.restore(state)
        run.begin(point)
        for at, (x, y) in enumerate(batches, point.batches_delivered + 1):
            loss = cell(x, y)
            if at % 4 == 0:
                network.set_train(False)
                for image, label in slices().create_tuple_iterator(num_epochs=1):
                    network(image, label).asnumpy()
                network.set_train()
            run.step((x, y), loss, cell=cell)
            manager.step(state)


@job(Exact(), "graph")
def saves_by_hand_at_the_ends_of_epochs(run):
    cell = accumulating(remainder="flush")
    batches = ck.data.resumable(slices(), 3)
    with run.manager(save=ck.SaveEvery(optimizer_steps=1000)) as manager:
        state = ck.StateManager(cell, batches)
        run.begin(manager.restore(state))
        epoch = None
        for x, y in batches:
            loss = cell(x, y)
            run.step((x, y), loss, cell=cell)
            manager.step(state)
            if batches.epoch != epoch:
                epoch = batches.epoch
                manager.save(state).result()


@job(Told("previous"), "graph")
@job(Refused(("got new memory", "ops.assign"), after=6), "pynative")
def bold_driver(run):
    """The rate grows while the loss falls, and is halved where it rises."""
    cell = accumulating(Loss())
    rate = cell.optimizer.learning_rate
    previous = float("inf")
    batches = ck.data.resumable(slices(), EPOCHS)
    with run.manager() as manager:
        state = ck.StateManager(cell, batches)
        run.begin(manager.restore(state))
        for x, y in batches:
            loss = cell(x, y)
            rate.set_data(rate * (1.1 if float(loss) < previous else 0.5))
            previous = min(previous, float(loss))
            run.step((x, y), loss, cell=cell)
            manager.step(state)


@job(Refused(("each of these counts its own cycles", "by a name of its own")), "graph")
def two_accumulating_cells(run):
    """Two networks in turn, each with cycles of its own."""
    cells = [
        ck.AccumulationTrainCell(loss, adam(loss), k).set_train()
        for loss, k in ((renamed(Loss(), "a"), 3), (renamed(Loss(), "b"), 2))
    ]
    batches = ck.data.resumable(slices(), EPOCHS)
    with run.manager() as manager:
        state = ck.StateManager(cells, batches)
        point = manager.restore(state)
        run.begin(point)
        for at, (x, y) in enumerate(batches, point.batches_delivered):
            run.step((x, y), cells[at % 2](x, y), cells=cells)
            manager.step(state)


@job(Refused(("was called", "times already")), "graph")
def rates_tried_before_the_training(run):
    """A search for a rate with the very cell that is trained then."""
    cell = accumulating()
    weights = [parameter.asnumpy().copy() for parameter in cell.get_parameters()]
    for x, y in rows()[:4]:
        cell(x, y)
    for parameter, before in zip(cell.get_parameters(), weights, strict=True):
        parameter.set_data(ms.Tensor(before))
    run.loop(cell, ck.data.resumable(slices(), EPOCHS))


@job(Exact(), "graph")
def rates_tried_with_a_cell_of_their_own(run):
    trial = accumulating()
    for x, y in rows()[:4]:
        trial(x, y)
    ms.set_seed(1)
    run.loop(accumulating(), ck.data.resumable(slices(), EPOCHS))


@job(Exact(), "pynative")
def pseudo_labels_of_the_model(run):
    """Every batch is labelled by the network itself, in the loop."""
    cell = accumulating()

    def step(x, y):
        labels = cell.network.network(x).argmax(1).astype(ms.int32)
        return cell(x, ops.where(x.sum(1) > 8, y, labels))

    run.loop(cell, ck.data.resumable(slices(), EPOCHS), step)


FORGOTTEN = {"steps": 0}


@job(Told("FORGOTTEN"), "pynative")
def counter_of_the_module(run):
    cell = accumulating()

    def step(x, y):
        FORGOTTEN["steps"] += 1
        return cell(x * (1 + 0.1 * FORGOTTEN["steps"]), y)

    run.loop(cell, ck.data.resumable(slices(), EPOCHS), step)


@job(Exact(), "graph")
def k_by_a_function_of_the_updates(run):
    loss = Loss()
    cell = ck.AccumulationTrainCell(loss, adam(loss), lambda updates: 1 + updates % 4, clip_norm=0.2)
    run.loop(cell.set_train(), ck.data.resumable(slices(), EPOCHS))


@job(Exact(), "graph")
def epochs_left_early_by_the_loop(run):
    """A budget of micro-steps that ends within an epoch."""
    cell = ck.AccumulationTrainCell(loss := Loss(), adam(loss), K, remainder="drop").set_train()
    batches = ck.data.resumable(slices(), 100)
    with run.manager() as manager:
        state = ck.StateManager(cell, batches)
        point = manager.restore(state)
        run.begin(point)
        at = point.batches_delivered
        while at < 14:
            for x, y in batches:
                run.step((x, y), cell(x, y), cell=cell)
                manager.step(state)
                at += 1
                if at == 14:
                    break
        manager.save_final(state)


def by_hand(run, calls):
    network = Net().set_train()
    optimizer = adam(network)
    gradients = ms.value_and_grad(lambda x, y: ops.cross_entropy(network(calls(x)), y), None, optimizer.parameters)

    def step(x, y):
        loss, found = gradients(x, y)
        optimizer(found)
        return loss

    run.loop([network, optimizer], ck.data.resumable(slices(), EPOCHS), step)


@job(Named("calls.0 (nn.Dropout)"), "pynative")
def random_cell_beside_the_trained_ones(run):
    noise = nn.SequentialCell(nn.Dropout(p=0.3), nn.ReLU()).set_train()
    by_hand(run, noise)


@job(Exact(), "pynative")
def random_cell_beside_the_trained_ones_that_is_off(run):
    noise = nn.SequentialCell(nn.Dropout(p=0.3), nn.ReLU())
    by_hand(run, noise)


def switched_once(run, switch, optimizer, compile_it=lambda update: update):
    """Everything is given by name, and the ninth micro-step switches something for all that follow."""
    network = nn.SequentialCell(nn.Dense(FEATURES, 8), nn.BatchNorm1d(8), nn.Dense(8, 3)).set_train()
    optimizer = optimizer(network.trainable_params(), 1e-2)

    def forward(x, y):
        return ops.cross_entropy(network(x), y)

    gradients = ms.value_and_grad(forward, None, optimizer.parameters)
    done = ms.Parameter(ms.Tensor(0, ms.int32), name="done", requires_grad=False)

    def update(x, y):
        loss, found = gradients(x, y)
        optimizer(found)
        return loss

    update = compile_it(update)

    def step(x, y):
        if int(done) == 8:
            switch(network, optimizer)
        ops.assign_add(done, ms.Tensor(1, ms.int32))
        return update(x, y)

    run.loop([], ck.data.resumable(slices(), EPOCHS), step, network=network, optimizer=optimizer, done=done)


@job(Exact(), "pynative")
def layer_frozen_of_a_network_given_by_name(run):
    switched_once(run, lambda network, _: setattr(network[0].weight, "requires_grad", False), nn.Adam)


@job(Exact(), "pynative")
def norm_in_evaluation_of_a_network_given_by_name(run):
    switched_once(run, lambda network, _: network[1].set_train(False), nn.Adam)


@job(Exact(), "pynative")
def weight_decay_of_an_optimizer_given_by_name(run):
    switched_once(run, lambda _, optimizer: optimizer.param_groups[0].update(weight_decay=0.3), optim.SGD)


@job(Exact(), "pynative")
def norm_in_evaluation_that_a_compiled_step_does_not_see(run):
    """The step keeps the graph that it compiled when the norm was in training; so does a resumed one."""
    switched_once(run, lambda network, _: network[1].set_train(False), nn.Adam, ms.jit)


class Noise(nn.Cell):
    """Draws what is exact in PYNATIVE, and not where it is compiled."""

    def construct(self, x):
        return x + 0.1 * ops.standard_normal(x.shape)


def functional(run, compile_it):
    network = nn.SequentialCell(nn.Dense(FEATURES, 8), Noise(), nn.Dense(8, 3)).set_train()
    optimizer = adam(network)

    def forward(x, y):
        return ops.cross_entropy(network(x), y)

    gradients = ms.value_and_grad(forward, None, optimizer.parameters)

    def step(x, y):
        loss, found = gradients(x, y)
        optimizer(found)
        return loss

    run.loop([network, optimizer], ck.data.resumable(slices(), EPOCHS), compile_it(step))


@job(Named("network.1 (Noise): ops.standard_normal"), "pynative")
def noise_in_a_compiled_step(run):
    functional(run, ms.jit)


@job(Exact(), "pynative")
def noise_in_a_step_that_nobody_compiles(run):
    functional(run, lambda step: step)
