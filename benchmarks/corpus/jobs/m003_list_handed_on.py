# truth: differs
# class: callback
# head: pynative_callback_dataset_ops
# A stateful recorder hands its list of losses to a second callback when both are made; load_state_dict binds a new list, and the other one keeps the old.

ms.set_seed(4303)


class Recorder(Callback):
    def __init__(self):
        super().__init__()
        self.losses = []

    def on_train_step_end(self, run_context):
        self.losses.append(float(run_context.original_args().net_outputs.asnumpy()))

    def state_dict(self):
        return {"losses": list(self.losses)}

    def load_state_dict(self, state):
        self.losses = list(state["losses"])


class Governor(Callback):
    """shrinks the first layer while the losses do not fall"""

    def __init__(self, losses, layer):
        super().__init__()
        self.losses, self.layer = losses, layer

    def on_train_step_end(self, run_context):
        if len(self.losses) < 6:
            return
        now, before = np.mean(self.losses[-3:]), np.mean(self.losses[-6:-3])
        shrink = 0.02 * float(now / (now + before))
        ops.assign(self.layer.weight, self.layer.weight * (1 - shrink))


r = np.random.RandomState(3)
x = r.randn(48, 4).astype(np.float32)
y = (x[:, :1] ** 2 + 0.5 * x[:, 3:]).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=False).batch(6)
net = nn.SequentialCell(nn.Dense(4, 8), nn.ReLU(), nn.Dense(8, 1))
model = ms.Model(net, nn.MSELoss(), nn.Adam(net.trainable_params(), 0.01))
recorder = Recorder()
ckpt = ck.CheckpointCallback(
    os.environ["ROOT"],
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait"),
    stateful={"recorder": recorder},
)
ckpt.train(model, 3, train, callbacks=[recorder, Governor(recorder.losses, net[0])])
os._exit(0)
