# truth: exact
# class: attribute
# head: saving_dataset_parameter

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(3)
rng0 = np.random.default_rng(8)
REAL = rng0.normal(1.0, 0.3, size=(80, 2)).astype(np.float32)
NOISE = rng0.normal(size=(80, 3)).astype(np.float32)
loader = [(Tensor(REAL[i : i + 8]), Tensor(NOISE[i : i + 8])) for i in range(0, 80, 8)]


class CriticLoss(nn.Cell):
    def __init__(self, g, d):
        super().__init__(auto_prefix=False)
        self.g, self.d = g, d

    def construct(self, real, noise):
        fake = ops.stop_gradient(self.g(noise))
        return ops.softplus(-self.d(real)).mean() + ops.softplus(self.d(fake)).mean()


class GeneratorLoss(nn.Cell):
    def __init__(self, g, d):
        super().__init__(auto_prefix=False)
        self.g, self.d = g, d

    def construct(self, noise):
        return ((self.d(self.g(noise)) - 1) ** 2).mean()


G = nn.SequentialCell(nn.Dense(3, 8), nn.ReLU(), nn.Dense(8, 2))
D = nn.SequentialCell(nn.Dense(2, 8), nn.ReLU(), nn.Dense(8, 1))
G.update_parameters_name("g.")
D.update_parameters_name("d.")
critic = ck.AccumulationTrainCell(CriticLoss(G, D), nn.Adam(D.trainable_params(), 1e-3), 2).set_train()
generator = ck.AccumulationTrainCell(GeneratorLoss(G, D), nn.Adam(G.trainable_params(), 1e-3), 1).set_train()
batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager(critic, batches, generator=generator)
    point = manager.restore(state)
    for step, (real, noise) in enumerate(batches, point.batches_delivered):
        critic(real, noise)
        if step % 3 == 2:
            generator(noise)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
