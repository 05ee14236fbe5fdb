"""MindSpore's pipelines."""

from __future__ import annotations

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn
from PIL import Image

import ckptkit as ck
from exactness.jobs.job import job
from exactness.jobs.outcome import Exact, Refused, Told
from exactness.jobs.parts import BATCH, EPOCHS, FEATURES, SAMPLES, Loss, accumulating, arrays


def train(run, data, **options):
    run.train(ms.Model(accumulating()), EPOCHS, data, **options)


class Rows:
    def __init__(self):
        self.x, self.y = arrays()

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return self.x[index], self.y[index]


def sampled(sampler, epochs_of=1):
    return ds.NumpySlicesDataset(arrays(), ["x", "y"], sampler=sampler).batch(BATCH).repeat(epochs_of)


@job(Exact(), "graph")
def weighted_samples(run):
    train(run, sampled(ds.WeightedRandomSampler([1 + i % 5 for i in range(SAMPLES)], SAMPLES)))


@job(Exact(), "graph")
def random_subset_through_a_child_sampler(run):
    inner = ds.SubsetRandomSampler(list(range(0, SAMPLES)))
    outer = ds.RandomSampler(replacement=True, num_samples=SAMPLES)
    outer.add_child(inner)
    train(run, sampled(outer))


@job(Exact(), "graph")
def shard_of_a_shuffled_set_repeated(run):
    data = ds.NumpySlicesDataset(arrays(), ["x", "y"], sampler=ds.DistributedSampler(2, 1, shuffle=True))
    train(run, data.batch(BATCH).repeat(2))


class Images(nn.Cell):
    def __init__(self):
        super().__init__()
        self.loss = Loss()

    def construct(self, image, label):
        return self.loss(image.reshape(image.shape[0], -1)[:, :FEATURES].astype(ms.float32) / 255, label)


def folders(run):
    rng = np.random.default_rng(0)
    for index in range(SAMPLES):
        place = run.folder / "images" / f"class{index % 3}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(place / f"{index:03d}.png")
    return str(run.folder / "images")


@job(Exact(), "graph")
def images_by_classes(run):
    data = ds.ImageFolderDataset(folders(run), sampler=ds.PKSampler(16, shuffle=True), decode=True).batch(BATCH)
    run.train(ms.Model(accumulating(Images())), EPOCHS, data)


@job(Exact(), "pynative")
def images_cropped_and_flipped(run):
    data = ds.ImageFolderDataset(folders(run), shuffle=True, decode=True)
    crop = [ds.vision.RandomResizedCrop(6), ds.vision.RandomHorizontalFlip(), ds.vision.RandomColorAdjust(0.4)]
    data = data.map(crop, ["image"], num_parallel_workers=2).batch(BATCH)
    run.train(ms.Model(accumulating(Images())), EPOCHS, data)


class OwnGenerator(Rows):
    """Noise from a generator that the source made for itself."""

    def __init__(self):
        super().__init__()
        self.rng = np.random.default_rng(3)

    def __getitem__(self, index):
        return self.x[index] + self.rng.standard_normal(FEATURES).astype(np.float32), self.y[index]


@job(Exact(), "graph")
def source_with_a_generator_of_its_own(run):
    train(run, ds.GeneratorDataset(OwnGenerator(), ["x", "y"], shuffle=True, num_parallel_workers=1).batch(BATCH))


@job(Told("threads"), "graph")
def map_with_a_generator_shared_by_threads(run):
    rng = np.random.default_rng(3)

    def noisy(x):
        return x + rng.standard_normal(FEATURES).astype(np.float32)

    data = ds.NumpySlicesDataset(arrays(), ["x", "y"], shuffle=True).map(noisy, ["x"], num_parallel_workers=2)
    train(run, data.batch(BATCH))


class Entropy(Rows):
    """Noise from what the operating system gives."""

    def __getitem__(self, index):
        rng = np.random.default_rng()
        return self.x[index] + rng.standard_normal(FEATURES).astype(np.float32), self.y[index]


@job(Refused(("is different now",), "resume"), "graph")
def source_seeded_by_the_system(run):
    train(run, ds.GeneratorDataset(Entropy(), ["x", "y"], num_parallel_workers=1).batch(BATCH))


class Aged(Rows):
    """Counts how often a sample was read, and fades it."""

    def __init__(self):
        super().__init__()
        self.reads = np.zeros(SAMPLES, np.float32)

    def __getitem__(self, index):
        self.reads[index] += 1
        return self.x[index] / self.reads[index], self.y[index]


@job(Exact(), "graph")
def source_that_counts_its_reads(run):
    train(run, ds.GeneratorDataset(Aged(), ["x", "y"], shuffle=True, num_parallel_workers=1).batch(BATCH))


class Mosaic(Rows):
    """Stops to mix samples when it is told to."""

    def __init__(self):
        super().__init__()
        self.mixes = True

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return (x + self.x[-index]) / 2 if self.mixes else x, y


@job(Told("mixes"), "pynative")
def source_that_the_loop_switches(run):
    ds.config.set_prefetch_size(1)
    source, cell = Mosaic(), accumulating()
    data = ds.GeneratorDataset(source, ["x", "y"], shuffle=True, num_parallel_workers=1).batch(BATCH)
    batches = ck.data.resumable(data, EPOCHS)
    with run.manager() as manager:
        state = ck.StateManager(cell, batches)
        run.begin(manager.restore(state))
        for x, y in batches:
            source.mixes = batches.epoch < 1
            loss = cell(x, y)
            run.step((x, y), loss, cell=cell)
            manager.step(state)


@job(Told("mixes"), "graph")
def source_that_a_callback_switches(run):
    source = Mosaic()

    class Off(ms.Callback):
        def on_train_epoch_end(self, run_context):
            if run_context.original_args().cur_epoch_num == 1:
                source.mixes = False

    data = ds.GeneratorDataset(source, ["x", "y"], shuffle=True, num_parallel_workers=1).batch(BATCH)
    train(run, data, callbacks=[Off()])


def lowered(x):
    return x - 0.5


@job(Exact(), "pynative")
def map_in_processes(run):
    data = ds.NumpySlicesDataset(arrays(), ["x", "y"], shuffle=True)
    data = data.map(lowered, ["x"], num_parallel_workers=2, python_multiprocessing=True).batch(BATCH)
    train(run, data)


class Sequences:
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return np.full((2 + index % 5, FEATURES), index / 10, np.float32), np.int32(index % 3)


class Pooled(nn.Cell):
    def __init__(self):
        super().__init__()
        self.loss = Loss()

    def construct(self, x, y):
        return self.loss(x.mean(1), y)


@job(Exact(), "pynative")
def sequences_padded_to_the_longest(run):
    data = ds.GeneratorDataset(Sequences(), ["x", "y"], shuffle=True, num_parallel_workers=1)
    data = data.padded_batch(BATCH, pad_info={"x": ([None, FEATURES], 0)})
    run.train(ms.Model(accumulating(Pooled(), normalize="samples")), EPOCHS, data)


@job(Told("epoch"), "pynative")
def sequences_in_buckets_by_length(run):
    data = ds.GeneratorDataset(Sequences(), ["x", "y"], shuffle=True, num_parallel_workers=1)
    data = data.bucket_batch_by_length(
        ["x"], [4], [BATCH, BATCH], lambda x: x.shape[0], pad_info={"x": ([None, FEATURES], 0)}
    )
    run.train(ms.Model(accumulating(Pooled())), EPOCHS, data)


@job(Exact(), "graph")
def two_sets_joined_and_shuffled(run):
    x, y = arrays()
    first = ds.NumpySlicesDataset((x[:20], y[:20]), ["x", "y"], shuffle=True)
    second = ds.GeneratorDataset(
        list(zip(x[20:], y[20:], strict=True)), ["x", "y"], shuffle=True, num_parallel_workers=1
    )
    train(run, (first + second).shuffle(10).batch(BATCH))


class TwoViews(nn.Cell):
    def __init__(self):
        super().__init__()
        self.loss = Loss()

    def construct(self, x, y, z):
        return self.loss(x, y) + 0.1 * (self.loss.network(z) ** 2).mean()


@job(Exact(), "graph")
def labelled_beside_unlabelled(run):
    z = ds.NumpySlicesDataset(np.random.default_rng(1).random((SAMPLES, FEATURES), np.float32), ["z"], shuffle=True)
    data = ds.zip((ds.NumpySlicesDataset(arrays(), ["x", "y"], shuffle=True), z)).batch(BATCH)
    run.train(ms.Model(accumulating(TwoViews())), EPOCHS, data)


@job(Told("generators"), "pynative", kill=6)
def filter_that_draws(run):
    """Epochs may become of different lengths."""

    def kept(y):
        return bool(np.random.random() < 0.6)

    train(run, ds.NumpySlicesDataset(arrays(), ["x", "y"]).filter(kept, ["y"], num_parallel_workers=1).batch(BATCH))


@job(Exact(), "pynative")
def dictionaries_of_a_loop(run):
    cell = accumulating()
    batches = ck.data.resumable([{"x": x, "y": y} for x, y in pairs()], EPOCHS)
    with run.manager() as manager:
        state = ck.StateManager(cell, batches)
        run.begin(manager.restore(state))
        for batch in batches:
            run.step(batch, cell(batch["x"], batch["y"]), cell=cell)
            manager.step(state)


def pairs():
    x, y = arrays()
    return [(ms.Tensor(x[i : i + BATCH]), ms.Tensor(y[i : i + BATCH])) for i in range(0, SAMPLES, BATCH)]


@job(Exact(), "graph")
def batches_that_are_changed_by_numpy(run):
    def cutmix(x, y, info):
        rng = ck.data.sample_rng(1, info.get_epoch_num(), info.get_batch_num())
        other = rng.permutation(len(x))
        return [np.concatenate((row[:4], x[one][4:])) for row, one in zip(x, other, strict=True)], y

    data = ds.NumpySlicesDataset(arrays(), ["x", "y"], shuffle=True)
    train(run, data.batch(BATCH, per_batch_map=cutmix, input_columns=["x", "y"], num_parallel_workers=1))


@job(Exact(), "graph")
def bytes_and_texts_beside_numbers(run):
    class Texts(Rows):
        def __getitem__(self, index):
            return np.array(f"sample {index}"), self.x[index], self.y[index]

    data = ds.GeneratorDataset(Texts(), ["name", "x", "y"], shuffle=True, num_parallel_workers=1).project(
        ["x", "y", "name"]
    )
    cell = accumulating()
    run.loop(cell, ck.data.resumable(data.batch(BATCH), EPOCHS), lambda x, y, name: cell(x, y))
