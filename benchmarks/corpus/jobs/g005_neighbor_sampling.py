# truth: exact
# class: data
# head: imports_ops
# GraphSAGE with sampled neighbours; the sampler's generator is given by name, everything else comes from the node numbers.


ms.set_seed(10)
NODES, FEATURES, FANOUT = 40, 6, 3

graph_rng = np.random.default_rng(1)
features = graph_rng.normal(size=(NODES, FEATURES)).astype(np.float32)
adjacency = {v: sorted(graph_rng.choice(NODES, size=6, replace=False).tolist()) for v in range(NODES)}
labels = (features[:, 0] + np.array([features[adjacency[v], 0].mean() for v in range(NODES)]) > 0).astype(np.int32)


class SageLoss(nn.Cell):
    def __init__(self):
        super().__init__()
        self.own = nn.Dense(FEATURES, 8)
        self.neigh = nn.Dense(FEATURES, 8)
        self.out = nn.Dense(8, 2)

    def construct(self, x, nbrs, y):
        # x (B, F), nbrs (B, FANOUT, F)
        h = ops.relu(self.own(x) + self.neigh(nbrs.mean(1)))
        return ops.cross_entropy(self.out(h), y)


class NeighborSampler:
    def __init__(self, adj, rng):
        self.adj, self.rng = adj, rng

    def sample(self, nodes):
        return np.stack([self.rng.choice(self.adj[int(v)], FANOUT, replace=False) for v in nodes])


def main():
    loss = SageLoss()
    opt = nn.Adam(loss.trainable_params(), learning_rate=0.01)
    cell = ck.AccumulationTrainCell(loss, opt, 2, clip_norm=1.0).set_train()
    rng = np.random.default_rng(77)
    sampler = NeighborSampler(adjacency, rng)
    order = ck.data.GlobalIndices(NODES, global_batch=10, micro_batch=5, seed=3)
    batches = ck.data.resumable(order, epochs=3)
    with ck.CheckpointManager(
        os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
    ) as manager:
        state = ck.StateManager(cell, batches, sampler_rng=rng)
        manager.restore(state)
        for numbers in batches:
            _, nodes = divmod(numbers, NODES)
            nbrs = sampler.sample(nodes)
            cell(ms.Tensor(features[nodes]), ms.Tensor(features[nbrs]), ms.Tensor(labels[nodes]))
            manager.step(state)
        manager.save_final(state)


if __name__ == "__main__":
    main()
    os._exit(0)
