# truth: exact
# class: random
# head: regression_8_grad_fn



def train_step(x, y, w=1.0):
    loss, grads = grad_fn(x, y, w)
    optimizer(grads)
    return loss


from PIL import Image, ImageEnhance


def aug(x):
    a = ((x.asnumpy() + 4) * 30).clip(0, 255).astype(np.uint8)
    im = Image.fromarray(a)
    im = ImageEnhance.Brightness(im).enhance(random.uniform(0.8, 1.2))
    if random.random() < 0.5:
        im = im.transpose(Image.FLIP_LEFT_RIGHT)
    return Tensor(np.asarray(im).astype(np.float32) / 30 - 4)


batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        train_step(aug(x), y)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
