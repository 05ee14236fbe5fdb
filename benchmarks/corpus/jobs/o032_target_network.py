# truth: differs
# class: attribute
# head: pynative_ops
# Fitted value learning with a target network that is synchronized every seventh batch; it is a second network of the script that the StateManager does not get.

ms.set_seed(3532)
STATES, GAMMA = 10, 0.9


def value_net():
    return nn.SequentialCell(nn.Dense(STATES, 10), nn.Tanh(), nn.Dense(10, 1))


def synchronize(target, net):
    for old, new in zip(target.get_parameters(), net.get_parameters()):
        ops.assign(old, new)


r = np.random.RandomState(32)
eye = np.eye(STATES, dtype=np.float32)
rows = []
for _ in range(10):
    here = r.randint(0, STATES, 8)
    there = (here + r.choice([-1, 1, 2], 8)) % STATES
    reward = ((there == 0) - 0.1).astype(np.float32)
    rows.append((ms.Tensor(eye[here]), ms.Tensor(reward[:, None]), ms.Tensor(eye[there])))

net, target = value_net(), value_net()
synchronize(target, net)
optimizer = nn.Adam(net.trainable_params(), 0.02)
gradients = ms.value_and_grad(lambda s, v: ((net(s) - v) ** 2).mean(), None, net.trainable_params())

batches = ck.data.resumable(rows, epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for number, (here, reward, there) in enumerate(batches, point.batches_delivered + 1):
        loss, grads = gradients(here, reward + GAMMA * target(there))
        optimizer(grads)
        if number % 7 == 0:
            synchronize(target, net)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
