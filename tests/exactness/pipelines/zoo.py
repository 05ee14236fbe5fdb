"""Pipelines and iterables: what each is made of, how it is expected to be positioned, and what was declared."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import mindspore.dataset as ds
import numpy as np
from mindspore.dataset import transforms, vision

from ckptkit import data

from .files import COUNT


@dataclass(frozen=True)
class Kind:
    """One pipeline, built over the files of a folder."""

    build: Callable[[Path], Any]
    way: Literal["fast", "replay", "inexact"]
    draws: bool = False
    stateless: bool = False


class Source:
    """Random access."""

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return (np.array([index], np.int64),)


class DrawsNumpy(Source):
    def __getitem__(self, index):
        return (draw_numpy(np.array([index])),)


class Stream:
    """Iterable only."""

    def __iter__(self):
        for index in range(COUNT):
            yield (np.array([index], np.int64),)


class Decoding(Source):
    """Random access behind an `EpochSampler`."""

    def __getitem__(self, number):
        return (np.array(divmod(number, COUNT), np.int64),)


class GlobalSampler(ds.Sampler):
    def __iter__(self):
        return iter(np.random.permutation(COUNT).tolist())


class OwnSampler(ds.Sampler):
    epoch = 0

    def __iter__(self):
        self.epoch += 1
        return iter(np.random.default_rng(self.epoch).permutation(COUNT).tolist())


def child_of_mindspores(sampler):
    """What a sampler of MindSpore chooses from comes in the order of ``sampler``."""
    parent = ds.SequentialSampler()
    parent.add_child(sampler)
    return batched(slices(None, sampler=parent))


class NumpySlicesDataset(ds.NumpySlicesDataset):
    """A class of the user's own, whatever its name."""


class Watching(ds.DSCallback):
    """Is told in this process what a map does."""

    def ds_step_end(self, ds_run_context):
        pass


def draw_numpy(x):
    return np.concatenate([x, np.array([np.random.randint(1 << 30)], np.int64)])


def draw_python(x):
    return np.concatenate([x, np.array([random.randrange(1 << 30)], np.int64)])


def squared(x):
    return x * x


class LoaderWithState:
    """An iteration delivers the rest of the epoch that the state is in."""

    def __init__(self):
        self.state = {"epoch": 0, "row": 0, "walk": np.zeros(3)}

    def state_dict(self):
        return self.state  # live, as many give it

    def load_state_dict(self, state):
        self.state = state

    def __iter__(self):
        order = np.random.default_rng(self.state["epoch"]).permutation(COUNT).reshape(-1, 3)
        while self.state["row"] < len(order):
            self.state["row"] += 1
            self.state["walk"] += 0.1 * order[self.state["row"] - 1]
            yield self.state["walk"].copy()
        self.state.update(epoch=self.state["epoch"] + 1, row=0)


def augment(sample, rng):
    return sample[0], rng.integers(1 << 30, size=3)


def batched(dataset):
    return dataset.batch(3, drop_remainder=True)


def slices(shuffle=True, count=COUNT, column="x", kind=ds.NumpySlicesDataset, **options):
    return kind(np.arange(count)[:, None], [column], shuffle=shuffle, **options)


def generator(source=Source, *, shuffle=True, **options):
    return ds.GeneratorDataset(source(), ["x"], shuffle=shuffle, **options)


def images(folder, *, decode=True, workers=1):
    made = ds.ImageFolderDataset(str(folder / "images"), shuffle=True, decode=decode, num_parallel_workers=workers)
    return made.project(["image"])


def cropped(folder, workers, *operations):
    return batched(images(folder).map(list(operations), ["image"], num_parallel_workers=workers))


def sampled(sampler, source=Source):
    return batched(generator(source, shuffle=None, sampler=sampler))


def replacing():
    return ds.RandomSampler(replacement=True, num_samples=COUNT)


def epoch_sampled():
    return sampled(data.EpochSampler(COUNT, 3), Decoding)


def augmented(**options):
    return batched(data.Augmented(Source(), augment, seed=3).dataset(["x", "z"], **options))


def mapped(function, **options):
    return batched(generator().map(function, ["x"], **options))


def csv(folder):
    files = [str(folder / "0.csv"), str(folder / "1.csv")]
    made = ds.CSVDataset(files, column_defaults=[0, 0], column_names=["x", "y"], shuffle=ds.Shuffle.FILES)
    return batched(made.project(["x"]))


def fixed(folder):
    operations = [
        vision.Decode(),
        vision.Resize(12),
        vision.CenterCrop(10),
        vision.Pad(1),
        vision.Rescale(1 / 255, 0.0),
    ]
    operations += [vision.Normalize([0.5] * 3, [0.2] * 3), vision.HWC2CHW(), transforms.TypeCast(np.float32)]
    return batched(images(folder, decode=False).map([operations[0], transforms.Compose(operations[1:])], ["image"]))


def summed(columns, info):
    return ([column + np.random.randint(1000) for column in columns],)


def crop():
    """New ones each time: MindSpore decides once for each whether it runs in Python."""
    return vision.RandomCrop(8), vision.RandomHorizontalFlip()


def kind(build: Callable[..., Any], way: Any, **options: bool) -> Kind:
    takes_folder = not isinstance(build, type) and build.__code__.co_argcount == 1
    return Kind(build if takes_folder else lambda _: build(), way, **options)


KINDS: dict[str, Kind] = {
    "slices": kind(lambda: batched(slices()), "fast"),
    "slices-renamed": kind(lambda: batched(slices().rename(["x"], ["z"]).project(["z"])), "fast"),
    "slices-replacement": kind(lambda: batched(slices(None, sampler=replacing())), "fast"),
    "slices-remainder": kind(lambda: slices().batch(5), "fast"),
    "slices-buffer": kind(lambda: batched(slices(shuffle=False).shuffle(6)), "fast"),
    "repeat-batch": kind(lambda: batched(slices().repeat(2)), "fast"),
    "batch-repeat": kind(lambda: batched(slices()).repeat(2), "fast"),
    "concat": kind(lambda: batched((slices(count=10) + slices(count=14)).shuffle(6)), "fast"),
    "zip": kind(lambda: batched(ds.zip((slices(), slices(column="y")))), "fast"),
    "skip-take": kind(lambda: batched(slices().skip(2).take(20)), "fast"),
    "split": kind(lambda: batched(slices().split([0.75, 0.25])[0]), "fast"),
    "mnist": kind(lambda folder: batched(ds.MnistDataset(str(folder / "mnist"), shuffle=True)), "fast"),
    "mindrecord": kind(lambda folder: batched(ds.MindDataset(str(folder / "x.mindrecord"), shuffle=True)), "fast"),
    "fixed-operations": kind(fixed, "fast"),
    "augmented": kind(augmented, "fast"),
    "augmented-processes": kind(lambda: augmented(num_parallel_workers=2), "fast"),
    "augmented-threads": kind(lambda: augmented(num_parallel_workers=2, python_multiprocessing=False), "fast"),
    "epoch-sampler": kind(epoch_sampled, "replay"),
    "epoch-sampler-declared": kind(epoch_sampled, "fast", stateless=True),
    "map-declared": kind(lambda: mapped([squared]), "fast", stateless=True),
    "map-declared-wrongly": kind(
        lambda: mapped([draw_numpy], num_parallel_workers=1), "replay", draws=True, stateless=True
    ),
    "map": kind(lambda: mapped([squared], num_parallel_workers=2), "replay"),
    "map-numpy": kind(lambda: mapped([draw_numpy], num_parallel_workers=1), "replay", draws=True),
    "map-python": kind(lambda: mapped([draw_python], num_parallel_workers=1), "replay", draws=True),
    "map-numpy-processes": kind(
        lambda: mapped([draw_numpy], num_parallel_workers=2, python_multiprocessing=True), "replay"
    ),
    "map-numpy-threads": kind(lambda: mapped([draw_numpy], num_parallel_workers=2), "inexact", draws=True),
    "batch-map-numpy": kind(
        lambda: slices().batch(3, per_batch_map=summed, num_parallel_workers=1), "replay", draws=True
    ),
    "generator": kind(lambda: batched(generator()), "replay"),
    "generator-shard": kind(lambda: batched(generator(num_shards=2, shard_id=1)), "replay"),
    "generator-processes": kind(lambda: batched(generator(num_parallel_workers=2)), "replay"),
    "generator-stream": kind(lambda: batched(generator(Stream, shuffle=None)), "replay"),
    "generator-numpy": kind(lambda: batched(generator(DrawsNumpy)), "replay", draws=True),
    "sampler-own": kind(lambda: sampled(OwnSampler()), "replay"),
    "sampler-numpy": kind(lambda: sampled(GlobalSampler()), "replay", draws=True),
    "sampler-child": kind(lambda: child_of_mindspores(OwnSampler()), "replay"),
    "own-class": kind(lambda: batched(slices(kind=NumpySlicesDataset)), "replay"),
    "map-callback": kind(
        lambda folder: batched(images(folder).map(vision.CenterCrop(8), ["image"], callbacks=[Watching()])), "replay"
    ),
    "filter": kind(lambda: batched(slices().filter(lambda x: bool(x[0] % 4))), "replay"),
    "varying-batch": kind(lambda: slices().batch(lambda info: info.get_batch_num() % 3 + 1), "replay"),
    "crop": kind(lambda folder: cropped(folder, 1, *crop()), "replay"),
    "crop-composed": kind(
        lambda folder: cropped(folder, 1, transforms.Compose([vision.CenterCrop(10), vision.RandomCrop(8)])), "replay"
    ),
    "crop-workers": kind(lambda folder: cropped(folder, 2, *crop()), "replay"),
    "crop-in-python": kind(
        lambda folder: cropped(folder, 1, vision.ToPIL(), *crop(), vision.RandomRotation(20), vision.ToTensor()),
        "replay",
        draws=True,
    ),
    "random-choice": kind(
        lambda folder: cropped(folder, 1, transforms.RandomChoice([vision.RandomCrop(8), vision.CenterCrop(8)])),
        "replay",
    ),
    "csv-files": kind(csv, "replay"),
    "loader-state": kind(LoaderWithState, "fast"),
    "lines": kind(lambda folder: batched(ds.TextFileDataset(str(folder / "lines.txt"), shuffle=True)), "replay"),
}
