# truth: differs
# class: data
# head: pynative_ops
# GraphSAINT: subgraphs by random walks; the loss of a node is divided by how often it has been sampled, which the sampler counts as it goes. Only its generator is given by name.

ms.set_seed(4449)
NODES, WIDTH = 30, 5


class WalkSampler:
    def __init__(self, neighbours, roots, length, seed):
        self.neighbours, self.roots, self.length = neighbours, roots, length
        self.rng = np.random.default_rng(seed)
        self.subgraphs = 0
        self.node_count = np.zeros(len(neighbours))

    def sample(self):
        nodes = set()
        for node in self.rng.choice(len(self.neighbours), self.roots, replace=False):
            nodes.add(int(node))
            for _ in range(self.length):
                node = self.rng.choice(self.neighbours[node])
                nodes.add(int(node))
        nodes = np.array(sorted(nodes))
        self.subgraphs += 1
        self.node_count[nodes] += 1
        return nodes, (self.subgraphs / self.node_count[nodes]).astype(np.float32)


class GraphNet(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Dense(WIDTH, 8), nn.Dense(8, 1)

    def construct(self, adjacency, x, y, weight):
        hidden = ops.tanh(ops.matmul(adjacency, self.first(x)))
        out = ops.matmul(adjacency, self.second(hidden))
        return (((out - y) ** 2).sum(1) * weight).mean()


r = np.random.RandomState(49)
edges = np.eye(NODES) + (r.rand(NODES, NODES) < 0.12)
edges = np.maximum(edges, edges.T)
edges[np.arange(NODES), (np.arange(NODES) + 1) % NODES] = 1
neighbours = [np.flatnonzero(row) for row in edges]
x = r.randn(NODES, WIDTH).astype(np.float32)
y = (edges @ x[:, :1] / edges.sum(1, keepdims=True)).astype(np.float32)

net = GraphNet()
opt = nn.Adam(net.trainable_params(), 0.03)
gradients = ms.value_and_grad(net, None, net.trainable_params())
sampler = WalkSampler(neighbours, roots=4, length=2, seed=449)

batches = ck.data.resumable(list(range(10)), epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches, walks=sampler.rng)
    manager.restore(state)
    for _ in batches:
        nodes, weight = sampler.sample()
        part = edges[np.ix_(nodes, nodes)]
        part = (part / part.sum(1, keepdims=True)).astype(np.float32)
        loss, grads = gradients(ms.Tensor(part), ms.Tensor(x[nodes]), ms.Tensor(y[nodes]), ms.Tensor(weight))
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
