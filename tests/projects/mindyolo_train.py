"""Trains a tiny YOLOv8 as mindyolo's ``train.py`` does, which its package does not have: with its parts and trainer."""

import mindspore as ms
from mindyolo.data import COCODataset, create_loader
from mindyolo.models import create_loss, create_model
from mindyolo.optim import (
    EMA,
    create_group_param,
    create_lr_scheduler,
    create_optimizer,
    create_warmup_momentum_scheduler,
)
from mindyolo.utils import set_seed
from mindyolo.utils.config import Config
from mindyolo.utils.train_step_factory import create_train_step_fn, get_gradreducer, get_loss_scaler
from mindyolo.utils.trainer_factory import create_trainer

EPOCHS, BATCH, SIZE, CLASSES = 3, 4, 64, 80
NETWORK = {
    "model_name": "yolov8",
    "nc": CLASSES,
    "reg_max": 16,
    "stride": [8, 16, 32],
    "depth_multiple": 0.33,
    "width_multiple": 0.0625,
    "max_channels": 1024,
    "recompute": False,
    "recompute_layers": 0,
    "backbone": [
        [-1, 1, "ConvNormAct", [64, 3, 2]],
        [-1, 1, "ConvNormAct", [128, 3, 2]],
        [-1, 3, "C2f", [128, True]],
        [-1, 1, "ConvNormAct", [256, 3, 2]],
        [-1, 6, "C2f", [256, True]],
        [-1, 1, "ConvNormAct", [512, 3, 2]],
        [-1, 6, "C2f", [512, True]],
        [-1, 1, "ConvNormAct", [1024, 3, 2]],
        [-1, 3, "C2f", [1024, True]],
        [-1, 1, "SPPF", [1024, 5]],
    ],
    "head": [
        [-1, 1, "Upsample", [None, 2, "nearest"]],
        [[-1, 6], 1, "Concat", [1]],
        [-1, 3, "C2f", [512]],
        [-1, 1, "Upsample", [None, 2, "nearest"]],
        [[-1, 4], 1, "Concat", [1]],
        [-1, 3, "C2f", [256]],
        [-1, 1, "ConvNormAct", [256, 3, 2]],
        [[-1, 12], 1, "Concat", [1]],
        [-1, 3, "C2f", [512]],
        [-1, 1, "ConvNormAct", [512, 3, 2]],
        [[-1, 9], 1, "Concat", [1]],
        [-1, 3, "C2f", [1024]],
        [[15, 18, 21], 1, "YOLOv8Head", ["nc", "reg_max", "stride"]],
    ],
}
TRANSFORMS = [
    {"func_name": "mosaic", "prob": 1.0},
    {"func_name": "resample_segments"},
    {"func_name": "random_perspective", "prob": 1.0, "degrees": 0.0, "translate": 0.1, "scale": 0.5, "shear": 0.0},
    {"func_name": "hsv_augment", "prob": 1.0, "hgain": 0.015, "sgain": 0.7, "vgain": 0.4},
    {"func_name": "fliplr", "prob": 0.5},
    {"func_name": "label_norm", "xyxy2xywh_": True},
    {"func_name": "label_pad", "padding_size": 160, "padding_value": -1},
    {"func_name": "image_norm", "scale": 255.0},
    {"func_name": "image_transpose", "bgr2rgb": True, "hwc2chw": True},
]
OPTIMIZER = {
    "optimizer": "momentum",
    "lr_init": 0.01,
    "momentum": 0.937,
    "nesterov": True,
    "loss_scale": 1.0,
    "warmup_epochs": 3,
    "warmup_momentum": 0.8,
    "warmup_bias_lr": 0.1,
    "min_warmup_step": 1000,
    "group_param": "yolov8",
    "gp_weight_decay": 0.0005,
    "start_factor": 1.0,
    "end_factor": 0.01,
    "epochs": EPOCHS,
    "accumulate": 1,
    "total_batch_size": BATCH,
}


def make_network():
    return create_model(model_name="yolov8", model_cfg=Config(NETWORK), num_classes=CLASSES, sync_bn=False)


def main():
    ms.set_context(mode=ms.PYNATIVE_MODE)
    set_seed(2)
    network = make_network()
    ema = EMA(network, make_network())
    dataset = COCODataset(
        dataset_path="yolo/train2017.txt",
        img_size=SIZE,
        transforms_dict=TRANSFORMS,
        is_training=True,
        augment=True,
        batch_size=BATCH,
        stride=32,
    )
    dataloader = create_loader(
        dataset=dataset,
        batch_collate_fn=dataset.train_collate_fn,
        column_names_getitem=dataset.column_names_getitem,
        column_names_collate=dataset.column_names_collate,
        batch_size=BATCH,
        epoch_size=EPOCHS,
        rank=0,
        rank_size=1,
        shuffle=True,
        drop_remainder=True,
        num_parallel_workers=2,
        python_multiprocessing=True,
    )
    steps = dataloader.get_dataset_size() // EPOCHS
    options = {**OPTIMIZER, "steps_per_epoch": steps}
    loss = create_loss(
        name="YOLOv8Loss", box=7.5, cls=0.5, dfl=1.5, reg_max=16, anchors=1, stride=[8, 16, 32], nc=CLASSES
    )
    rates = create_lr_scheduler(**options)
    groups = create_group_param(params=network.trainable_params(), **options)
    optimizer = create_optimizer(params=groups, lr=rates, **options)
    reducer, scaler = get_gradreducer(False, optimizer.parameters), get_loss_scaler("static", scale_value=1.0)
    step = create_train_step_fn(
        task="detect",
        network=network,
        loss_fn=loss,
        optimizer=optimizer,
        loss_ratio=1,
        scaler=scaler,
        reducer=reducer,
        ema=ema,
        overflow_still_update=True,
        ms_jit=False,
    )
    network.set_train(True)
    optimizer.set_train(True)
    trainer = create_trainer(
        model_name="tiny",
        train_step_fn=step,
        scaler=scaler,
        dataloader=dataloader,
        steps_per_epoch=steps,
        network=network,
        loss_fn=loss,
        ema=ema,
        optimizer=optimizer,
        callback=[],
        reducer=reducer,
        data_sink=False,
        profiler=False,
    )
    trainer.train(
        epochs=EPOCHS,
        main_device=True,
        warmup_step=1000,
        warmup_momentum=create_warmup_momentum_scheduler(**options),
        overflow_still_update=True,
        log_interval=1,
        loss_item_name=getattr(loss, "loss_item_name", []),
        save_dir="runs/own",
        rank_size=1,
        ms_jit=False,
    )


if __name__ == "__main__":
    main()
