# truth: exact
# class: callback
# head: regression_6_graph_dataset

net = nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1))
opt = nn.Momentum(net.trainable_params(), 0.05, 0.9)
model = ms.Model(net, nn.MSELoss(), opt)


class Perturb(ms.Callback):
    def __init__(self, params, seed):
        super().__init__()
        self.params, self.seed = params, seed

    def on_train_step_end(self, run_context):
        step = run_context.original_args().cur_step_num
        if step % 3 == 0:
            rng = np.random.default_rng([self.seed, step])
            for p in self.params:
                ops.assign(p, p + Tensor((0.01 * rng.standard_normal(p.shape)).astype(np.float32)))


ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, train_data, callbacks=[Perturb(net.trainable_params(), 5)])
os._exit(0)
