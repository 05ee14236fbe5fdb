# truth: exact
# class: random
# head: imports_parameter


ROOT = os.environ["ROOT"]
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(2)
TEXT = "the quick brown fox jumps over the lazy dog and the dog sleeps in the warm sun while the fox runs home " * 12


class CharLM(nn.Cell):
    def __init__(self, vocab, batch, dim=8, hidden=16):
        super().__init__()
        self.embed, self.rnn, self.head = nn.Embedding(vocab, dim), nn.RNNCell(dim, hidden), nn.Dense(hidden, vocab)
        self.h = Parameter(ops.zeros((batch, hidden)), name="h", requires_grad=False)
        self.dropout = ck.nn.Dropout(0.1, seed=1)

    def reset(self):
        ops.assign(self.h, ops.zeros_like(self.h))

    def construct(self, ids, targets):
        h = ops.stop_gradient(self.h * 1.0)
        e, loss = self.embed(ids), 0
        for t in range(ids.shape[1]):
            h = self.rnn(e[:, t], h)
            loss += ops.cross_entropy(self.head(self.dropout(h)), targets[:, t])
        ops.assign(self.h, ops.stop_gradient(h))
        return loss / ids.shape[1]


class Corpus:
    def __init__(self, text, batch, bptt):
        self.vocab = {c: i for i, c in enumerate(sorted(set(text)))}
        ids = np.array([self.vocab[c] for c in text], np.int32)
        width = len(ids) // batch
        self.data, self.bptt = ids[: width * batch].reshape(batch, width), bptt

    def __len__(self):
        return (self.data.shape[1] - 1) // self.bptt

    def __iter__(self):
        return map(self.window, range(len(self)))

    def window(self, i):
        part = self.data[:, i * self.bptt : (i + 1) * self.bptt + 1]
        return Tensor(part[:, :-1]), Tensor(part[:, 1:])


corpus = Corpus(TEXT, batch=8, bptt=8)
model = CharLM(len(corpus.vocab), 8)
optimizer = nn.Adam(model.trainable_params(), 0.01)
step = nn.TrainOneStepCell(model, optimizer).set_train()
run = ck.loop(
    ROOT, corpus, epochs=2, train=step, save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
)
for ids, targets in run:
    number = run.step
    if number % len(corpus) == 0:
        model.reset()
    loss = step(ids, targets)
    if number % 10 == 9:
        print(f"{number}: perplexity {np.exp(float(loss)):.2f}")
os._exit(0)
