"""A small transformer that learns to write a licence, letter by letter; K micro-batches count by their letters.

python examples/language_model.py [RUN_ROOT [GRAPH | PYNATIVE]]

Kill it (Ctrl-C, or SIGKILL) as often as you like and start it again. Lines are of different lengths, so micro-batches
hold different numbers of letters. With normalize="weights" an update is the mean over all letters of its K
micro-batches, as if they had been one batch; the weight gathered so far is in a mid-cycle checkpoint too. The learning
rate depends on the optimizer's own step counter, and dropout on a counter in the network: both resume exactly.

To enlarge: another text file, WIDTH, DEPTH, LENGTH, EPOCHS.
"""

import sys
from pathlib import Path

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

TEXT = Path(__file__).parent.parent / "LICENSE"
WIDTH, DEPTH, HEADS, LENGTH = 32, 1, 4, 64
EPOCHS, BATCH, K, PEAK_RATE, WARMUP = 12, 10, 3, 1e-2, 10
PADDING = 0


def lines_of(path):
    """Lines as rows of letter numbers from 1, padded; and how many different letters there are."""
    lines = [line.strip()[: LENGTH + 1] for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    letters = {letter: number for number, letter in enumerate(sorted(set("".join(lines))), start=1)}
    rows = np.full((len(lines), LENGTH + 1), PADDING, np.int32)
    for row, line in zip(rows, lines, strict=True):
        row[: len(line)] = [letters[letter] for letter in line]
    return rows, len(letters) + 1


class Block(nn.Cell):
    def __init__(self):
        super().__init__()
        self.before_attention, self.before_layers = nn.LayerNorm((WIDTH,)), nn.LayerNorm((WIDTH,))
        self.query_key_value, self.project = nn.Dense(WIDTH, 3 * WIDTH), nn.Dense(WIDTH, WIDTH)
        self.layers = nn.SequentialCell(nn.Dense(WIDTH, 4 * WIDTH), nn.GELU(), nn.Dense(4 * WIDTH, WIDTH))
        self.dropout = ck.nn.Dropout(0.1)
        self.later = ms.Tensor(np.triu(np.full((LENGTH, LENGTH), -1e9, np.float32), 1))

    def construct(self, x):
        qkv = self.query_key_value(self.before_attention(x)).reshape(-1, LENGTH, 3, HEADS, WIDTH // HEADS)
        query, key, value = qkv.transpose(2, 0, 3, 1, 4)
        scores = ops.matmul(query, key.swapaxes(-1, -2)) * (WIDTH // HEADS) ** -0.5 + self.later
        seen = ops.matmul(ops.softmax(scores), value).swapaxes(1, 2).reshape(-1, LENGTH, WIDTH)
        x = x + self.dropout(self.project(seen))
        return x + self.layers(self.before_layers(x))


class LanguageModel(nn.Cell):
    """Gives the summed loss of a micro-batch and the number of letters in it."""

    def __init__(self, letters):
        super().__init__()
        self.letter, self.place = nn.Embedding(letters, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.places = ms.Tensor(np.arange(LENGTH), ms.int32)
        self.blocks = nn.SequentialCell(*[Block() for _ in range(DEPTH)])
        self.to_letters = nn.Dense(WIDTH, letters)

    def construct(self, rows):
        x = self.letter(rows[:, :-1]) + self.place(self.places)
        logits = self.to_letters(self.blocks(x)).astype(ms.float32)
        target = rows[:, 1:].reshape(-1)
        losses = ops.cross_entropy(logits.reshape(target.shape[0], -1), target, reduction="none")
        counts = (target != PADDING).astype(ms.float32)
        return (losses * counts).sum(), counts.sum()


class WarmUpThenDecay(nn.learning_rate_schedule.LearningRateSchedule):
    """Rises for WARMUP updates, then falls with the square root of their number."""

    def construct(self, step):
        update = step.astype(ms.float32) + 1
        return PEAK_RATE * ops.minimum(update / WARMUP, (WARMUP / update) ** 0.5)


def main(root="runs/language-model", mode="GRAPH"):
    ms.set_context(mode=getattr(ms, f"{mode}_MODE"))
    ms.set_seed(1)
    rows, letters = lines_of(TEXT)
    dataset = ds.NumpySlicesDataset({"rows": rows}, shuffle=True).batch(BATCH, drop_remainder=True)

    model = LanguageModel(letters)
    optimizer = nn.AdamWeightDecay(model.trainable_params(), WarmUpThenDecay(), beta2=0.99, weight_decay=0.01)
    cell = ck.AccumulationTrainCell(model, optimizer, K, clip_norm=1.0, normalize="weights", remainder="flush")

    ckpt = ck.CheckpointCallback(root, save=ck.SaveEvery(micro_steps=10), keep=ck.KeepLatest(2))
    ckpt.train(ms.Model(cell), EPOCHS, dataset, callbacks=[ms.train.LossMonitor(17)])


if __name__ == "__main__":
    main(*sys.argv[1:])
