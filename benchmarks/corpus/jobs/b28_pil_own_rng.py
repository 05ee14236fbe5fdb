# truth: differs
# class: attribute
# head: regression_8_grad_fn



def train_step(x, y, w=1.0):
    loss, grads = grad_fn(x, y, w)
    optimizer(grads)
    return loss


from PIL import Image


class RandomRotate:
    def __init__(self, deg, seed=0):
        self.deg = deg
        self.rng = random.Random(seed)

    def __call__(self, a):
        im = Image.fromarray(((a + 4) * 30).clip(0, 255).astype(np.uint8))
        return np.asarray(im.rotate(self.rng.uniform(-self.deg, self.deg))).astype(np.float32) / 30 - 4


class Compose:
    def __init__(self, *ts):
        self.ts = ts

    def __call__(self, a):
        return functools.reduce(lambda v, t: t(v), self.ts, a)


tf = Compose(RandomRotate(30), lambda a: a * 1.1)
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        train_step(Tensor(tf(x.asnumpy()).astype(np.float32)), y)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
