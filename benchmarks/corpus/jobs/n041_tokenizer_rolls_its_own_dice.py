# truth: differs
# class: random
# head: imports_random_ops
# A loader of texts has state_dict (epoch, place); its tokenizer regularizes: one batch in four, by a generator of the tokenizer's own, is spelled in characters.


ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(4441)

PAIRS = ["ab", "ba", "ca", "ac", "cb", "bc"]
VOCABULARY = {token: number + 1 for number, token in enumerate([*"abc", *PAIRS])}


class Tokenizer:
    def __init__(self, seed, characters_only):
        self.dice, self.characters_only = random.Random(seed), characters_only

    def encode(self, texts):
        merge = self.dice.random() >= self.characters_only
        return [self.tokens(text, merge) for text in texts]

    def tokens(self, text, merge):
        at, out = 0, []
        while at < len(text):
            piece = text[at : at + 2] if merge and text[at : at + 2] in VOCABULARY else text[at]
            out.append(VOCABULARY[piece])
            at += len(piece)
        return out


class TextLoader:
    def __init__(self, texts, tokenizer, size):
        self.texts, self.tokenizer, self.size = texts, tokenizer, size
        self.epoch, self.place = 0, 0

    def __len__(self):
        return len(self.texts) // self.size

    def __iter__(self):
        if self.place == len(self):
            self.epoch, self.place = self.epoch + 1, 0
        order = np.random.default_rng([41, self.epoch]).permutation(len(self.texts))
        while self.place < len(self):
            chosen = [self.texts[n] for n in order[self.place * self.size : (self.place + 1) * self.size]]
            self.place += 1
            padded = np.zeros((self.size, 10), np.int32)
            for row, tokens in zip(padded, self.tokenizer.encode(chosen)):
                row[: len(tokens)] = tokens
            yield padded, np.array([[t.count("ab") - t.count("c")] for t in chosen], np.float32)

    def state_dict(self):
        return {"epoch": self.epoch, "place": self.place}

    def load_state_dict(self, state):
        self.epoch, self.place = state["epoch"], state["place"]


class Bag(nn.Cell):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(len(VOCABULARY) + 1, 6)
        self.out = nn.Dense(6, 1)

    def construct(self, tokens, y):
        return ((self.out(ops.tanh(self.embedding(tokens)).sum(1)) - y) ** 2).mean()


r = random.Random(41)
texts = ["".join(r.choices("abc", k=r.randint(4, 10))) for _ in range(48)]
net = Bag()
cell = ck.AccumulationTrainCell(net, nn.Adam(net.trainable_params(), 0.02), accumulation_steps=1).set_train()

batches = ck.data.resumable(TextLoader(texts, Tokenizer(441, 0.25), 6), epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for tokens, y in batches:
        cell(ms.Tensor(tokens), ms.Tensor(y))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
