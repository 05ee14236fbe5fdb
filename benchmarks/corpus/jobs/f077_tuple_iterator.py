# truth: exact
# class: iterator
# head: imports_dataset
# The classic loop of MindSpore tutorials: create_tuple_iterator over epochs, TrainOneStepCell, batches counted by hand.


EPOCHS = 3
ms.set_seed(84)
ms.set_context(mode=ms.GRAPH_MODE)


def get_dataset():
    r = np.random.RandomState(84)
    data = r.randn(40, 1, 7, 7).astype(np.float32)
    label = np.abs(data).max((1, 2, 3)).astype(np.float32)[:, None]
    dataset = ds.NumpySlicesDataset({"data": data, "label": label}, shuffle=True)
    return dataset.batch(5, drop_remainder=True)


class Regressor(nn.Cell):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, pad_mode="valid", has_bias=True)
        self.pool = nn.AvgPool2d(5)
        self.act = nn.Tanh()
        self.flat = nn.Flatten()
        self.fc = nn.Dense(4, 1)

    def construct(self, x):
        return self.fc(self.flat(self.pool(self.act(self.conv(x)))))


net = Regressor()
optimizer = nn.Adam(net.trainable_params(), learning_rate=nn.ExponentialDecayLR(0.02, 0.9, 8))
train_net = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), optimizer)
train_net.set_train()
dataset = get_dataset()

manager = ck.CheckpointManager(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
with manager:
    state = ck.StateManager(train_net, dataset)
    point = manager.restore(state)
    iterator = dataset.create_tuple_iterator(num_epochs=EPOCHS)
    state.iterator_made()
    for epoch in range(point.epoch, EPOCHS):
        for data, label in iterator:
            loss = train_net(data, label)
            state.count_delivered()
            manager.step(state)
        print(f"Epoch {epoch}: loss {float(loss.asnumpy()):.4f}")
    manager.save_final(state)
os._exit(0)
