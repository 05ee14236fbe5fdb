# truth: differs
# class: attribute
# head: pynative
# Preference learning (IPO) with a reference policy that moves: every fourth batch it is mixed with the policy. It is a dict of arrays, made from the weights before the restore.

ms.set_seed(4453)
ANSWERS, WIDTH, TAU = 6, 5, 0.5


class Policy(nn.Cell):
    """a prompt is a vector; the answers are six texts by number; the margin of log-probabilities is that of logits"""

    def __init__(self):
        super().__init__()
        self.hidden, self.logits = nn.Dense(WIDTH, 8), nn.Dense(8, ANSWERS)
        self.tanh = nn.Tanh()

    def construct(self, prompt, sign):
        return (self.logits(self.tanh(self.hidden(prompt))) * sign).sum(1)


class Reference:
    def __init__(self, policy, mixing):
        self.mixing = mixing
        self.weights = {p.name: p.asnumpy().copy() for p in policy.get_parameters()}

    def update(self, policy):
        for p in policy.get_parameters():
            self.weights[p.name] = (1 - self.mixing) * self.weights[p.name] + self.mixing * p.asnumpy()

    def margins(self, prompt, sign):
        w = self.weights
        hidden = np.tanh(prompt @ w["hidden.weight"].T + w["hidden.bias"])
        return ((hidden @ w["logits.weight"].T + w["logits.bias"]) * sign).sum(1).astype(np.float32)


def ipo(prompt, sign, reference_margins):
    gain = policy(prompt, sign) - reference_margins
    return ((gain - 1 / (2 * TAU)) ** 2).mean()


r = np.random.RandomState(53)
quality = r.randn(WIDTH, ANSWERS)
rows = []
for _ in range(8):
    prompt = r.randn(6, WIDTH).astype(np.float32)
    sign = np.zeros((6, ANSWERS), np.float32)
    for row, scores in zip(sign, prompt @ quality):
        a, b = r.choice(ANSWERS, 2, replace=False)
        row[a], row[b] = (1, -1) if scores[a] > scores[b] else (-1, 1)
    rows.append((prompt, sign))
policy = Policy()
reference = Reference(policy, mixing=0.5)
opt = nn.Adam(policy.trainable_params(), 0.02)
gradients = ms.value_and_grad(ipo, None, policy.trainable_params())

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([policy, opt], batches)
    point = manager.restore(state)
    for at, (prompt, sign) in enumerate(batches, point.batches_delivered):
        prompt, sign = np.asarray(prompt), np.asarray(sign)
        loss, grads = gradients(ms.Tensor(prompt), ms.Tensor(sign), ms.Tensor(reference.margins(prompt, sign)))
        opt(grads)
        if at % 4 == 3:
            reference.update(policy)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
