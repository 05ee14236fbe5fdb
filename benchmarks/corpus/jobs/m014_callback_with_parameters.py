# truth: exact
# class: callback
# head: pynative_callback_dataset_ops
# A callback of one's own without state_dict holds averaged weights as Parameters beside plain numbers; it is given in stateful=, which stores both.

ms.set_seed(4314)


class SlowWeights(Callback):
    """an average of the weights with a warm-up; weights are pulled to it, harder if the loss is above its own average"""

    def __init__(self, params, decay):
        super().__init__()
        self.decay, self.steps = decay, 0
        self.level, self.recent = 0.0, []
        self.average = ms.ParameterTuple(
            [ms.Parameter(p.asnumpy().copy(), name=f"slow.{p.name}", requires_grad=False) for p in params]
        )

    def on_train_step_end(self, run_context):
        cb = run_context.original_args()
        loss = float(cb.net_outputs.asnumpy())
        self.steps += 1
        self.recent = [*self.recent[-3:], loss]
        self.level += (loss - self.level) / self.steps
        keep = min(self.decay, (1 + self.steps) / (4 + self.steps))
        pull = 0.1 if np.mean(self.recent) > self.level else 0.03
        for slow, p in zip(self.average, cb.optimizer.parameters):
            ops.assign(slow, keep * slow + (1 - keep) * p)
            ops.assign(p, p + pull * (slow - p))


r = np.random.RandomState(14)
x = r.randn(48, 4).astype(np.float32)
y = np.where(x[:, :1] > 0, x[:, 1:2], -x[:, 2:3]).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(6)
net = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 1))
opt = nn.Adam(net.trainable_params(), 0.03)
slow = SlowWeights(net.trainable_params(), 0.9)
ckpt = ck.CheckpointCallback(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"), stateful={"slow": slow}
)
ckpt.train(ms.Model(net, nn.MSELoss(), opt), 3, train, callbacks=[slow])
os._exit(0)
