# truth: differs
# class: callback
# head: graph_callback_dataset_ops
# A MultiStep callback pops a milestone when its step is reached and halves the (stored) rate; a start has all milestones again and pops the past ones.

ms.set_seed(4305)


class MultiStep(Callback):
    def __init__(self, milestones, gamma=0.5):
        super().__init__()
        self.milestones = sorted(milestones)
        self.gamma = gamma

    def on_train_step_end(self, run_context):
        cb = run_context.original_args()
        if self.milestones and cb.cur_step_num >= self.milestones[0]:
            self.milestones.pop(0)
            rate = cb.optimizer.learning_rate
            ops.assign(rate, ms.Tensor(float(rate.asnumpy()) * self.gamma, ms.float32))
            print(f"step {cb.cur_step_num}: rate {float(rate.asnumpy()):.5f}")


r = np.random.RandomState(5)
x = r.randn(48, 6).astype(np.float32)
y = np.sin(x[:, :1] + x[:, 1:2]).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"]).batch(6)
net = nn.SequentialCell(nn.Dense(6, 10), nn.Tanh(), nn.Dense(10, 1))
model = ms.Model(net, nn.MSELoss(), nn.SGD(net.trainable_params(), 0.1, momentum=0.9))
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 3, train, callbacks=[MultiStep([6, 12, 20])])
os._exit(0)
