# truth: differs
# class: attribute
# head: classes_6_adam

grad_fn = ms.value_and_grad(lambda x, y: ops.cross_entropy(net(x), y), None, opt.parameters)


def kmeans(features, k=4, rounds=5):
    centers = features[:k].copy()
    for _ in range(rounds):
        label = ((features[:, None] - centers[None]) ** 2).sum(-1).argmin(1)
        for j in range(k):
            if (label == j).any():
                centers[j] = features[label == j].mean(0)
    return label.astype(np.int32)


class DeepCluster:
    def __init__(self, net, opt):
        self.net, self.opt = net, opt
        self.seen_epoch, self.labels = -1, None

    def begin_epoch(self, epoch):
        self.labels = kmeans(self.net(Tensor(X)).asnumpy())
        self.seen_epoch = epoch

    def step(self, ids, x, epoch):
        if epoch != self.seen_epoch:
            self.begin_epoch(epoch)
        _, grads = grad_fn(x, Tensor(self.labels[ids]))
        self.opt(grads)


trainer = DeepCluster(net, opt)
batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for ids, x, _ in batches:
        trainer.step(ids, x, batches.epoch)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
