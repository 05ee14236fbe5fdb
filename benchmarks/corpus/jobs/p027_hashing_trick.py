# truth: refused
# class: random
# head: imports_random
# Text features by the hashing trick: every word has the column hash(word) % 64.


ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(127)

WORDS = "offer free money meeting report lunch winner click agenda minutes prize budget review urgent".split()
SPAM = {"offer", "free", "money", "winner", "click", "prize", "urgent"}
maker = random.Random(27)
mails = [maker.choices(WORDS, k=maker.randint(4, 9)) for _ in range(80)]


def features(mail):
    row = np.zeros(64, np.float32)
    for word in mail:
        row[hash(word) % 64] += 1.0
    return row


x = np.stack([features(mail) for mail in mails])
y = np.array([[sum(w in SPAM for w in mail) / len(mail)] for mail in mails], np.float32)
rows = [(x[at : at + 8], y[at : at + 8]) for at in range(0, 80, 8)]
net = nn.SequentialCell(nn.Dense(64, 8), nn.ReLU(), nn.Dense(8, 1))
optimizer = nn.Adam(net.trainable_params(), 1e-2)
grad_fn = ms.value_and_grad(lambda x, y: ((net(x) - y) ** 2).mean(), None, net.trainable_params())

batches = ck.data.resumable(rows, epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, optimizer], batches)
    manager.restore(state)
    for xb, yb in batches:
        loss, grads = grad_fn(ms.Tensor(xb), ms.Tensor(yb))
        optimizer(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
