# truth: differs
# class: attribute
# head: pynative_ops
# Novelty search: perturbed policies are rewarded for behaving unlike those in an archive, which grows with each batch; the generator is given by name, the archive is not.

ms.set_seed(4358)


class Archive:
    def __init__(self, neighbours):
        self.neighbours = neighbours
        self.behaviours = []

    def __len__(self):
        return len(self.behaviours)

    def novelty(self, behaviour, others):
        known = np.stack([*self.behaviours, *others])
        return float(np.sort(np.linalg.norm(known - behaviour, axis=1))[: self.neighbours].mean())

    def add(self, behaviour):
        self.behaviours.append(behaviour)


def flat(weights):
    return np.concatenate([p.asnumpy().ravel() for p in weights])


def put(weights, vector):
    at = 0
    for p in weights:
        ops.assign(p, ms.Tensor(vector[at : at + p.size].reshape(p.shape).astype(np.float32)))
        at += p.size


def behave(net, starts):
    """where some walkers end whom the policy moves"""
    places = starts
    for _ in range(3):
        places = places + 0.5 * np.tanh(net(ms.Tensor(places.astype(np.float32))).asnumpy())
    return places.mean(0)


r = np.random.RandomState(58)
rows = [(r.randn(5, 2).astype(np.float32),) for _ in range(8)]
net = nn.SequentialCell(nn.Dense(2, 4), nn.Tanh(), nn.Dense(4, 2))
weights = net.trainable_params()
rng, archive = np.random.default_rng(58), Archive(neighbours=3)

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net], batches, rng=rng)
    manager.restore(state)
    for (starts,) in batches:
        manager.fence()
        center = flat(weights)
        noise = rng.standard_normal((6, len(center)))
        behaviours = []
        for direction in noise:
            put(weights, center + 0.2 * direction)
            behaviours.append(behave(net, starts))
        novelty = np.array([archive.novelty(b, behaviours) for b in behaviours])
        put(weights, center + 0.1 * ((novelty - novelty.mean()) / (novelty.std() + 1e-6)) @ noise)
        archive.add(behaviours[int(novelty.argmax())])
        print(f"archive of {len(archive)}, novelty {novelty.max():.3f}")
        manager.step(state)
    manager.save_final(state)
os._exit(0)
