# truth: exact, may be named
# class: random
# head: saving_pynative_model_callback_dataset_tensor_ops
# the anchor comes from a seeded generator, so each start makes the same one

g = np.random.default_rng(5)
X, Y = g.normal(size=(64, 8)).astype(np.float32), g.normal(size=(64, 1)).astype(np.float32)
data = ds.NumpySlicesDataset((X, Y), ["x", "y"], shuffle=False).batch(8)


class Pretrained(dict):
    """Stands for a file of weights that never changes."""

    def __init__(self, network, seed):
        rng = np.random.default_rng(seed)
        super().__init__(
            (p.name, (0.3 * rng.normal(size=p.shape)).astype(np.float32)) for p in network.get_parameters()
        )

    def load_into(self, network):
        for p in network.get_parameters():
            p.set_data(Tensor(self[p.name]))


class L2SP(Callback):
    def __init__(self, anchor, strength):
        super().__init__()
        self.anchor, self.strength = anchor, strength

    def on_train_step_end(self, run_context):
        for p in run_context.original_args().optimizer.parameters:
            ops.assign(p, p + self.strength * (Tensor(self.anchor[p.name]) - p))


net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
pretrained = Pretrained(net, seed=77)
pretrained.load_into(net)
model = Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.03, 0.9))
ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, data, callbacks=[L2SP(pretrained, 0.05)])
os._exit(0)
