"""Trains a tiny DBNet on random images with mindocr's data, loss, schedule, optimizer, train cell and callback.

Gradients are accumulated over two batches, and the weights have a moving average.
"""

import json
from pathlib import Path

import mindspore as ms
import numpy as np
from mindocr.data import build_dataset
from mindocr.losses import build_loss
from mindocr.models import build_model
from mindocr.optim import create_optimizer
from mindocr.scheduler import create_scheduler
from mindocr.utils.callbacks import EvalSaveCallback
from mindocr.utils.ema import EMA
from mindocr.utils.model_wrapper import NetWithLossWrapper
from mindocr.utils.seed import set_seed
from mindocr.utils.train_step_wrapper import TrainOneStepWrapper
from mindspore import nn
from PIL import Image

import ckptkit as ck

EPOCHS, IMAGES, BATCH = 3, 16, 2
PIPELINE = [
    {"DecodeImage": {"img_mode": "RGB", "to_float32": False}},
    {"DetLabelEncode": None},
    {"RandomColorAdjust": {"brightness": 0.2, "saturation": 0.3}},
    {"RandomHorizontalFlip": {"p": 0.5}},
    {"RandomRotate": {"degrees": [-5, 5], "expand_canvas": False, "p": 0.8}},
    {"RandomCropWithBBox": {"max_tries": 5, "min_crop_ratio": 0.2, "crop_size": [64, 64], "p": 1.0}},
    {"ValidatePolygons": None},
    {"ShrinkBinaryMap": {"min_text_size": 4, "shrink_ratio": 0.5}},
    {"BorderMap": {"shrink_ratio": 0.5, "thresh_min": 0.2, "thresh_max": 0.8}},
    {"NormalizeImage": {"bgr_to_rgb": False, "is_hwc": True, "mean": "imagenet", "std": "imagenet"}},
    {"ToCHWImage": None},
]
NETWORK = {
    "type": "det",
    "backbone": {
        "name": "det_mobilenet_v3",
        "architecture": "small",
        "alpha": 0.5,
        "out_stages": [3, 5, 10, 13],
        "pretrained": False,
    },
    "neck": {"name": "DBFPN", "out_channels": 32},
    "head": {"name": "DBHead"},
}


def write_images(folder):
    """Write images of random pixels, each with a text in a square."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    text = [{"transcription": "A", "points": [[10, 10], [70, 10], [70, 60], [10, 60]]}]
    with (folder / "labels.txt").open("w") as labels:
        for number in range(IMAGES):
            Image.fromarray(rng.integers(0, 255, (80, 80, 3), dtype=np.uint8)).save(folder / f"{number}.png")
            labels.write(f"{number}.png\t{json.dumps(text)}\n")


def main():
    ms.set_context(mode=ms.PYNATIVE_MODE)
    set_seed(1)
    if not Path("data").exists():
        write_images(Path("data"))
    images = {
        "type": "DetDataset",
        "dataset_root": ".",
        "data_dir": "data",
        "label_file": "data/labels.txt",
        "transform_pipeline": PIPELINE,
        "output_columns": ["image", "binary_map", "mask", "thresh_map", "thresh_mask"],
    }
    batches = build_dataset(images, {"shuffle": True, "batch_size": BATCH, "num_workers": 1}, is_train=True)
    network = build_model(NETWORK)
    rates = create_scheduler(
        batches.get_dataset_size(), "polynomial_decay", lr=0.01, warmup_epochs=1, decay_epochs=2, num_epochs=EPOCHS
    )
    optimizer = create_optimizer(network.trainable_params(), "SGD", lr=rates, weight_decay=1e-3)
    cell = TrainOneStepWrapper(
        NetWithLossWrapper(network, build_loss("DBLoss")),
        optimizer,
        nn.FixedLossScaleUpdateCell(1.0),
        ema=EMA(network),
        gradient_accumulation_steps=2,
    )
    monitor = EvalSaveCallback(network, batch_size=BATCH, ckpt_save_dir="out")
    model = ms.Model(cell)
    ckpt = ck.CheckpointCallback("runs/dbnet")
    point = ckpt.resume(model, batches, EPOCHS)
    monitor.start_epoch = point.epoch
    model.train(EPOCHS, batches, callbacks=[monitor, ckpt], dataset_sink_mode=False, initial_epoch=point.epoch)


if __name__ == "__main__":
    main()
