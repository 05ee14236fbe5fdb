# truth: differs
# class: global
# head: imports_dataset_ops
# "Free" adversarial training (Shafahi et al.): the perturbation is carried from one minibatch to the next in a global array.


ms.set_seed(123)
EPS, STEP = 0.3, 0.1
BATCH = 6

images = np.random.RandomState(7).rand(48, 1, 6, 6).astype(np.float32)
labels = (images[:, 0, :3].mean((1, 2)) > images[:, 0, 3:].mean((1, 2))).astype(np.int32)


class SmallCNN(nn.Cell):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, pad_mode="same", has_bias=True)
        self.relu = nn.ReLU()
        self.flatten = nn.Flatten()
        self.fc = nn.Dense(4 * 36, 2)

    def construct(self, x):
        return self.fc(self.flatten(self.relu(self.conv(x))))


model = SmallCNN()
criterion = nn.CrossEntropyLoss()
optimizer = nn.Momentum(model.trainable_params(), learning_rate=0.05, momentum=0.9)

global_delta = np.zeros((BATCH, 1, 6, 6), np.float32)


def forward(x, y):
    return criterion(model(x), y)


# gradient of the input and of the weights in one backward pass
grad_fn = ms.value_and_grad(forward, 0, optimizer.parameters)


def train_step(x, y):
    global global_delta
    loss, (dx, dw) = grad_fn(x + ms.Tensor(global_delta), y)
    optimizer(dw)
    global_delta = np.clip(global_delta + STEP * np.sign(dx.asnumpy()), -EPS, EPS).astype(np.float32)
    return loss


dataset = ds.NumpySlicesDataset((images, labels), ["image", "label"], shuffle=True).batch(BATCH, drop_remainder=True)
batches = ck.data.resumable(dataset, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([model, optimizer], batches)
    manager.restore(state)
    for image, label in batches:
        loss = train_step(image, label)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
