# truth: exact
# class: random
# head: saving_dataset_parameter

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(3)
rng0 = np.random.default_rng(31)
IMG = rng0.normal(size=(48, 1, 8, 8)).astype(np.float32)
LAB = (np.arange(48) % 3).astype(np.int32)


def crop(sample, rng):
    image, label = sample
    t, l = rng.integers(0, 3, size=2)
    out = image[:, t : t + 6, l : l + 6]
    return (out[:, :, ::-1].copy() if rng.random() < 0.5 else out.copy()), label


data = ck.data.Augmented(list(zip(IMG, LAB)), crop, seed=5).dataset(["image", "label"]).batch(4)
net = nn.SequentialCell(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Dense(144, 3))
opt = nn.Momentum(net.trainable_params(), 0.02, 0.9)
model = ms.Model(net, nn.CrossEntropyLoss(), opt)
ck.CheckpointCallback(ROOT, **SAVE).train(model, 2, data)
os._exit(0)
