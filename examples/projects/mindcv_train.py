"""Trains a tiny MobileNetV2 on random images with mindcv's data, loss, schedule, optimizer and trainer."""

from pathlib import Path

import mindcv
import mindspore as ms
import numpy as np
from mindcv.data import create_dataset, create_loader, create_transforms
from mindcv.utils import StateMonitor, create_trainer, set_seed
from PIL import Image

import ckptkit as ck

EPOCHS, CLASSES = 2, 3


def write_images(folder):
    """Write 16 images of random pixels for each class."""
    rng = np.random.default_rng(0)
    for number in range(16 * CLASSES):
        path = folder / f"train/class-{number % CLASSES}/{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (40, 40, 3), dtype=np.uint8)).save(path)


def make_batches():
    images = create_dataset("imagenet", root="data", split="train", num_parallel_workers=1)
    transforms = create_transforms("imagenet", image_resize=32, is_training=True)
    return create_loader(
        images, 4, drop_remainder=True, is_training=True, mixup=0.2, num_classes=CLASSES, transform=transforms,
        num_parallel_workers=1,
    )  # fmt: skip


def main():
    ms.set_context(mode=ms.PYNATIVE_MODE)
    set_seed(1)
    if not Path("data").exists():
        write_images(Path("data"))
    batches = make_batches()
    network = mindcv.create_model("mobilenet_v2_035_128", num_classes=CLASSES)
    rates = mindcv.create_scheduler(batches.get_dataset_size(), "cosine_decay", warmup_epochs=1, decay_epochs=1)
    optimizer = mindcv.create_optimizer(network.trainable_params(), "adam", lr=rates, weight_decay=1e-4)
    trainer = create_trainer(network, mindcv.create_loss(), optimizer, set(), "O0", None, "fixed")
    monitor = StateMonitor(trainer, "tiny", dataset_sink_mode=False, ckpt_save_dir="out", summary_dir="out/summary")
    ck.nn.replace_dropout(network)
    ck.CheckpointCallback("runs/mindcv", save=ck.SaveEvery(optimizer_steps=5)).attach()
    trainer.train(EPOCHS, batches, callbacks=[monitor], dataset_sink_mode=False)


if __name__ == "__main__":
    main()
