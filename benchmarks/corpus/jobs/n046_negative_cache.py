# truth: differs
# class: attribute
# head: pynative_ops
# A recommender with NSCaching: each user has a cache of hard negatives that is refreshed from random candidates after each step; the generator is given by name, the caches are not.

ms.set_seed(4446)
USERS, ITEMS, WIDTH = 12, 30, 5


class Factors(nn.Cell):
    def __init__(self):
        super().__init__()
        self.users, self.items = nn.Embedding(USERS, WIDTH), nn.Embedding(ITEMS, WIDTH)

    def construct(self, user, item):
        return (self.users(user) * self.items(item)).sum(-1)


class NegativeCache:
    def __init__(self, model, rng, size, candidates):
        self.model, self.rng = model, rng
        self.size, self.candidates = size, candidates
        self.of_user = {}

    def sample(self, users):
        return np.array([self.rng.choice(self.entry(u)) for u in users.tolist()], np.int32)

    def entry(self, user):
        if user not in self.of_user:
            self.of_user[user] = self.rng.choice(ITEMS, self.size, replace=False)
        return self.of_user[user]

    def refresh(self, users):
        for user in users.tolist():
            pool = np.unique(np.append(self.entry(user), self.rng.choice(ITEMS, self.candidates)))
            scores = self.model(
                ms.Tensor(np.full(len(pool), user, np.int32)), ms.Tensor(pool.astype(np.int32))
            ).asnumpy()
            self.of_user[user] = pool[np.argsort(-scores, kind="stable")[: self.size]]


def hinge(user, positive, negative):
    return ops.relu(0.5 - net(user, positive) + net(user, negative)).mean()


r = np.random.RandomState(46)
taste = r.randn(USERS, 3) @ r.randn(3, ITEMS)
rows = []
for _ in range(8):
    users = r.permutation(USERS)[:6].astype(np.int32)
    liked = np.array([r.choice(np.argsort(-taste[u])[:5]) for u in users], np.int32)
    rows.append((users, liked))
net = Factors()
opt = nn.Momentum(net.trainable_params(), 0.5, 0.5)
gradients = ms.value_and_grad(hinge, None, net.trainable_params())
rng = np.random.default_rng(446)
negatives = NegativeCache(net, rng, size=4, candidates=6)

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches, rng=rng)
    manager.restore(state)
    for users, liked in batches:
        users, liked = np.asarray(users), np.asarray(liked)
        loss, grads = gradients(ms.Tensor(users), ms.Tensor(liked), ms.Tensor(negatives.sample(users)))
        opt(grads)
        negatives.refresh(users)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
