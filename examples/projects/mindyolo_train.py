"""Trains YOLOv8's head behind five convolutions on random boxes, with mindyolo's data, loss, step and Trainer.

`Trainer` has to have the lines that docs/projects.md names; python mindyolo_train.py, in an empty folder.
"""

from pathlib import Path

import mindspore as ms
import numpy as np
from mindyolo.data import COCODataset, create_loader
from mindyolo.models import create_loss, create_model
from mindyolo.optim import EMA, create_group_param, create_optimizer, create_warmup_momentum_scheduler
from mindyolo.utils import set_seed
from mindyolo.utils.config import Config
from mindyolo.utils.train_step_factory import create_train_step_fn, get_gradreducer, get_loss_scaler
from mindyolo.utils.trainer_factory import create_trainer
from PIL import Image

IMAGES, BATCH, EPOCHS, SIZE = 24, 4, 3, 64
STEPS = IMAGES // BATCH
CLASSES, BINS, STRIDES = 5, 8, [8, 16, 32]
AUGMENTATION = [
    {"func_name": "mosaic"},
    {"func_name": "resample_segments"},
    {"func_name": "random_perspective", "degrees": 5.0, "translate": 0.2, "scale": 0.3, "shear": 1.0},
    {"func_name": "hsv_augment", "hgain": 0.1, "sgain": 0.5, "vgain": 0.5},
    {"func_name": "fliplr", "prob": 0.3},
    {"func_name": "label_norm", "xyxy2xywh_": True},
    {"func_name": "label_pad", "padding_size": 40, "padding_value": -1},
    {"func_name": "image_norm", "scale": 255.0},
    {"func_name": "image_transpose", "bgr2rgb": True, "hwc2chw": True},
]


def write_images(folder):
    """Write images of random pixels, each with three random boxes."""
    rng = np.random.default_rng(0)
    (folder / "images").mkdir(parents=True)
    (folder / "labels").mkdir()
    for number in range(IMAGES):
        Image.fromarray(rng.integers(0, 255, (SIZE, SIZE, 3), dtype=np.uint8)).save(folder / f"images/{number}.png")
        centres, sizes = rng.uniform(0.3, 0.7, (3, 2)), rng.uniform(0.2, 0.5, (3, 2))
        boxes = np.concatenate([rng.integers(0, CLASSES, (3, 1)), centres, sizes], 1)
        np.savetxt(folder / f"labels/{number}.txt", boxes, "%g")


def make_network():
    convolutions = [[-1, 1, "ConvNormAct", [width, 3, 2]] for width in (8, 16, 16, 24, 32)]  # each halves the image
    head = [[2, 3, 4], 1, "YOLOv8Head", [CLASSES, BINS, STRIDES]]
    parts = {"stride": STRIDES, "depth_multiple": 1, "width_multiple": 1, "backbone": convolutions, "head": [head]}
    return create_model("yolov8", Config(parts), num_classes=CLASSES)


def make_batches():
    images = COCODataset("data/images", SIZE, AUGMENTATION, is_training=True, augment=True, batch_size=BATCH)
    return create_loader(
        images,
        images.train_collate_fn,
        images.column_names_getitem,
        images.column_names_collate,
        BATCH,
        epoch_size=EPOCHS,
        num_parallel_workers=2,
        drop_remainder=True,
        python_multiprocessing=True,
    )


def main():
    ms.set_context(mode=ms.PYNATIVE_MODE)
    set_seed(1)
    if not Path("data").exists():
        write_images(Path("data"))
    batches, network = make_batches(), make_network()
    average = EMA(network, make_network())
    loss = create_loss("YOLOv8Loss", box=5.0, cls=1.0, dfl=1.0, stride=STRIDES, nc=CLASSES, reg_max=BINS)
    warmup = {"steps_per_epoch": STEPS, "warmup_epochs": EPOCHS, "min_warmup_step": 100}
    groups = create_group_param(
        network.trainable_params(), 1e-3, group_param="yolov8", lr_init=0.02, start_factor=1.0, end_factor=0.1,
        warmup_bias_lr=0.05, accumulate=1, epochs=EPOCHS + 1, total_batch_size=BATCH, **warmup,
    )  # fmt: skip
    optimizer = create_optimizer(groups, lr=0.02, momentum=0.9, nesterov=True)
    reducer, scaler = get_gradreducer(False, optimizer.parameters), get_loss_scaler("static", 1.0)
    step = create_train_step_fn(
        "detect", network, loss, optimizer, loss_ratio=1, scaler=scaler, reducer=reducer, ema=average
    )
    network.set_train()
    trainer = create_trainer(
        "tiny", step, scaler, network, loss, average, optimizer, batches, STEPS, [], reducer, False, False
    )
    momenta = create_warmup_momentum_scheduler(momentum=0.9, warmup_momentum=0.6, **warmup)
    trainer.train(EPOCHS, True, 100, momenta, save_dir="out", rank_size=1, ms_jit=False)


if __name__ == "__main__":
    main()
