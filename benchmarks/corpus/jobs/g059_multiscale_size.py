# truth: differs
# class: variable
# head: imports_random_ops
# YOLO-like multi-scale training: every fourth batch a new input size is drawn and kept in a local variable until the next draw.


random.seed(416)
ms.set_seed(416)
np.random.seed(416)

BASE = 8
SCALES = [4, 6, 10, 12]


class TinyYolo(nn.Cell):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3, stride=1, pad_mode="same", has_bias=True)
        self.conv2 = nn.Conv2d(4, 8, 3, stride=2, pad_mode="same", has_bias=True)
        self.pred = nn.Dense(8, 2)

    def construct(self, x):
        x = ops.relu(self.conv1(x))
        x = ops.relu(self.conv2(x))
        return self.pred(x.mean((2, 3)))


def resize_nearest(images, size):
    idx = (np.arange(size) * images.shape[-1] // size).astype(int)
    return np.ascontiguousarray(images[:, :, idx][:, :, :, idx])


r = np.random.RandomState(0)
images = r.rand(54, 1, BASE, BASE).astype(np.float32)
boxes = np.stack([images[:, 0, :4].mean((1, 2)), images[:, 0, :, :4].mean((1, 2))], 1).astype(np.float32)
train_loader = [(images[i : i + 6], boxes[i : i + 6]) for i in range(0, 54, 6)]

net = TinyYolo()
mse = nn.MSELoss()
optimizer = nn.Adam(net.trainable_params(), learning_rate=0.01)
grad_fn = ms.value_and_grad(lambda x, t: mse(net(x), t), None, net.trainable_params())


def train(root):
    batches = ck.data.resumable(train_loader, epochs=3)
    with ck.CheckpointManager(root, save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")) as manager:
        state = ck.StateManager([net, optimizer], batches)
        seen = manager.restore(state).batches_delivered
        size = BASE
        for imgs, targets in batches:
            if seen % 4 == 0:
                size = random.choice(SCALES)
                print("new size", size)
            loss, grads = grad_fn(ms.Tensor(resize_nearest(imgs, size)), ms.Tensor(targets))
            optimizer(grads)
            seen += 1
            manager.step(state)
        manager.save_final(state)


train(os.environ["ROOT"])
os._exit(0)
