"""The projects of docs/projects.md: the patch fits, and the doctor says what the page says.

Each test installs the named version of a project with pip, applies the patch of examples/projects to the project's own
code, writes a tiny configuration and random data, and lets `ckptkit doctor` kill, resume and compare it. Needs PyPI.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from docs.documents import PROJECT
from support.process import python

import ckptkit

pytestmark = [pytest.mark.projects, pytest.mark.timeout(3600)]

OF_MINDFORMERS = (  # what it imports, even where a training does not use it
    *("mindpet==1.0.4", "sentencepiece", "tiktoken", "jieba", "nltk==3.9.1", "rouge-chinese", "deprecated", "wrapt"),
    *("datasets==4.0.0", "pandas==2.3.3", "pyarrow==19.0.0", "tokenizers==0.22.1", "huggingface-hub==0.36.0"),
    *("safetensors", "regex", "tqdm", "PyYAML", "dill", "multiprocess", "fsspec", "xxhash", "packaging"),
    *("python-dateutil", "pytz", "tzdata", "six", "requests", "urllib3", "charset-normalizer", "certifi", "idna"),
    *("filelock", "aiohttp", "aiosignal", "aiohappyeyeballs", "attrs", "frozenlist", "multidict", "propcache", "yarl"),
)
OF_MINDONE = (  # what it and transformers import
    *("certifi", "charset-normalizer", "filelock", "idna", "omegaconf", "PyYAML", "regex", "requests", "tenacity"),
    *("tqdm", "trampoline", "urllib3"),
)
OF_MINDNLP = (  # and diffusers and transformers
    *("accelerate==1.15.0", "diffusers==0.35.2", "ftfy", "wcwidth", "ml-dtypes", "safetensors", "packaging", "psutil"),
    *("certifi", "charset-normalizer", "filelock", "idna", "PyYAML", "regex", "requests", "tqdm", "urllib3"),
    *("importlib-metadata", "zipp"),
)
OF_MINDAUDIO = (  # what it imports, even where a training does not use it
    *("decorator", "easydict", "joblib", "Levenshtein", "mir_eval", "rapidfuzz", "scikit-learn", "six"),
    *("PyYAML", "threadpoolctl", "tqdm", "wget"),
)
OF_MINDOCR = (  # what it imports, even where a training does not use it
    *("addict", "contourpy", "cycler", "filelock", "fonttools", "huggingface-hub==0.36.0", "joblib", "kiwisolver"),
    *("lmdb", "matplotlib==3.10.8", "opencv-python-headless==4.11.0.86", "packaging", "pyclipper", "pycocotools"),
    *("pyparsing", "python-dateutil", "PyYAML", "rapidfuzz", "requests", "scikit-learn", "sentencepiece", "seqeval"),
    *("shapely<3", "six", "threadpoolctl", "tqdm"),
)
PATCHES = PROJECT / "examples/projects"
PAGE = (PROJECT / "docs/projects.md").read_text()


def apply(patch: str, folder: Path) -> None:
    git = shutil.which("git")
    assert git is not None
    done = subprocess.run([git, "apply", str(PATCHES / patch)], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def change(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert text.count(before) == 1, path
    path.write_text(text.replace(before, after))


def examined(
    folder: Path, packages: Path, *command: str, steps: int, **environment: str
) -> subprocess.CompletedProcess[str]:
    """How the doctor ends on ``python COMMAND`` in ``folder``."""
    paths = os.pathsep.join([str(packages), str(Path(ckptkit.__file__).parents[1])])
    return python(
        *("-m", "ckptkit", "doctor", "--json", "--steps", steps, "--kills", 3, "--", sys.executable, *command),
        expect=None,
        timeout=3500,
        environment={"GLOG_v": "3", "PYTHONPATH": paths, **environment},
        cwd=folder,
    )


def doctor(folder: Path, packages: Path, *command: str, steps: int, **environment: str) -> Mapping[str, Any]:
    done = examined(folder, packages, *command, steps=steps, **environment)
    assert done.stdout, done.stderr[-5000:]
    print(done.stdout)  # `pytest -rP` shows it
    return json.loads(done.stdout)


def ended(folder: Path, packages: Path, *command: str, steps: int) -> str:
    """What is said of a job whose first life ends with an error."""
    done = examined(folder, packages, *command, steps=steps)
    assert (done.returncode, done.stdout) == (1, ""), done.stderr[-5000:]
    print(done.stderr)
    return done.stderr


def test_patches_change_as_many_lines_as_the_page_says() -> None:
    """A changed line is one with ``+`` or ``-``."""
    for path in PATCHES.glob("*.patch"):
        lines = re.findall(r"^[+-](?![+-]{2} )", path.read_text(), flags=re.MULTILINE)
        row = re.search(rf"^\| \[{path.stem}\]\(.*\) \| .* \| (\d+) \|", PAGE, flags=re.MULTILINE)
        assert row is not None, path
        assert len(lines) == int(row[1]), path


def test_the_page_edits_the_line_of_the_patch() -> None:
    """Its command for a resume to look at puts an option into the one line that makes the callback."""
    for page in (PAGE, (PROJECT / "docs/zh/projects.md").read_text()):
        command = re.search(r"^sed -i 's/(.*)/(.*)/' train.py$", page, flags=re.MULTILINE)
        assert command is not None
        before, after = command.groups()
        patch = (PATCHES / "mindcv.patch").read_text()
        assert patch.count(before) == 1
        assert f"CheckpointCallback(os.path.join(args.ckpt_save_dir, {after}).attach()" in patch.replace(before, after)


@pytest.mark.parametrize("replaces", [False, True])
def test_mindcv_is_as_the_page_says(tmp_path: Path, package: Callable[..., Path], replaces: bool) -> None:
    from PIL import Image

    packages = package("mindcv==0.3.0", "PyYAML", "tqdm")
    for name in ("train.py", "config.py"):
        shutil.copy(Path(__file__).parent / "mindcv" / name, tmp_path)
    apply("mindcv.patch", tmp_path)
    if not replaces:
        change(tmp_path / "train.py", "    ck.nn.replace_dropout(network)\n", "")
    rng = np.random.default_rng(0)
    for number in range(48):
        folder = tmp_path / f"data/train/c{number % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 255, (40, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    options = (
        "--dataset imagenet --data_dir data --model mobilenet_v2_035_128 --num_classes 3 --image_resize 32 "
        "--batch_size 4 --epoch_size 2 --warmup_epochs 1 --decay_epochs 1 --num_parallel_workers 1 "
        "--dataset_sink_mode False --mixup 0.2 --mode 1"
    )
    report = doctor(tmp_path, packages, "train.py", *options.split(), steps=16)
    if replaces:
        assert report["exact"], report
    else:
        assert report["diagnosis"]["code"] == "random-operator", report
        assert "network._backbone.classifier.0 (Dropout)" in report["diagnosis"]["where"]


@pytest.mark.parametrize("assigns", [False, True])
def test_mindyolo_is_as_the_page_says(tmp_path: Path, package: Callable[..., Path], assigns: bool) -> None:
    """0.5.0 has the trainer, and neither ``train.py`` nor a configuration: `mindyolo_train.py` does without."""
    from PIL import Image

    packages = package("mindyolo==0.5.0", "opencv-python-headless==4.11.0.86", "PyYAML")
    shutil.copytree(packages / "mindyolo", tmp_path / "mindyolo")  # which comes first: it is beside the script
    apply("mindyolo.patch", tmp_path)
    change(tmp_path / "mindyolo/models/losses/yolov8_loss.py", ".max(-2)", ".max(axis=-2)")  # or MindSpore 2.10 stops
    if assigns:
        before = "self.optimizer.momentum = Tensor(warmup_momentum[i], dtype)"
        after = "ops.assign(self.optimizer.momentum, Tensor(warmup_momentum[i], dtype))"
        change(tmp_path / "mindyolo/utils/trainer_factory.py", before, after)
    shutil.copy(Path(__file__).parent / "mindyolo_train.py", tmp_path / "train.py")
    rng = np.random.default_rng(0)
    images, labels = tmp_path / "yolo/images/train2017", tmp_path / "yolo/labels/train2017"
    images.mkdir(parents=True)
    labels.mkdir(parents=True)
    for number in range(24):
        Image.fromarray(rng.integers(0, 255, (64, 64, 3), dtype=np.uint8)).save(images / f"{number:012d}.jpg")
        boxes = np.concatenate(
            [rng.integers(0, 80, (3, 1)), rng.uniform(0.3, 0.7, (3, 2)), rng.uniform(0.2, 0.5, (3, 2))], 1
        )
        np.savetxt(labels / f"{number:012d}.txt", boxes, "%g")
    paths = (f"./images/train2017/{number:012d}.jpg\n" for number in range(24))
    (tmp_path / "yolo/train2017.txt").write_text("".join(paths))
    if assigns:
        assert doctor(tmp_path, packages, "train.py", steps=13)["exact"]
    else:
        said = ended(tmp_path, packages, "train.py", steps=13)
        assert "life-001 ended with exit code 1 after 3 micro-steps" in said
        assert "momentum got new memory after the first update" in said


@pytest.mark.parametrize("accumulation", ["1", "2"])
def test_mindone_is_as_the_page_says(tmp_path: Path, package: Callable[..., Path], accumulation: str) -> None:
    """Its Trainer has a loop of its own; with an accumulation of 2, lives resume in mid-cycle."""
    packages = package(
        "mindone==0.5.0", "transformers==4.57.1", "tokenizers==0.22.1", "huggingface-hub==0.36.0", *OF_MINDONE
    )
    shutil.copy(PATCHES / "mindone_train.py", tmp_path)
    assert doctor(tmp_path, packages, "mindone_train.py", accumulation, steps=14)["exact"]


@pytest.mark.parametrize("way", ["script", "script that replaces", "YAML file that replaces"])
def test_mindformers_is_as_the_page_says(tmp_path: Path, package: Callable[..., Path], way: str) -> None:
    """Both ways: two lines in the script, and the callback named in the YAML file without either of them."""
    import yaml

    packages = package("mindformers==1.9.0", *OF_MINDFORMERS)
    for name in ("mindformers", "configs"):  # the copy comes first: it is beside the script
        shutil.copytree(packages / name, tmp_path / name)
    # CPU has no NPUGetFloatStatusV2, which the check for overflows calls: without it, nothing ever overflows.
    wrapper, check = tmp_path / "mindformers/wrapper/wrapper.py", "get_overflow_status(status, grads)"
    change(wrapper, f"cond = self.{check}\n        overflow", "cond = Tensor(False)\n        overflow")
    shutil.copy(PATCHES / "mindformers_train.py", tmp_path)
    options = yaml.safe_load((tmp_path / "configs/general/run_general_task.yaml").read_text())
    options["context"]["device_target"] = "CPU"
    options["runner_config"].update(batch_size=2, sink_mode=False)
    options["callbacks"] = [{"type": "MFLossMonitor"}]
    options["train_dataset"] = {}  # the script gives it
    attached = 'ck.CheckpointCallback("runs/chatglm2").attach()\n'
    replaced = "ck.nn.replace_dropout(model)\n"
    if way == "script that replaces":
        change(tmp_path / "mindformers_train.py", attached, replaced + attached)
    elif way == "YAML file that replaces":
        change(tmp_path / "mindformers_train.py", attached, replaced)
        named = {"type": "CkptKit", "auto_register": "mindformers_callback.CkptKit", "root": "runs/chatglm2"}
        options["callbacks"].append(named)
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(options))
    report = doctor(tmp_path, packages, "mindformers_train.py", steps=18, REGISTER_PATH=str(PATCHES))
    if way == "script":
        assert report["diagnosis"]["code"] == "random-operator", report
        assert "attention_dropout (nn.Dropout)" in report["diagnosis"]["where"]
    else:
        assert report["exact"], report


@pytest.mark.parametrize("drops", [True, False])
def test_mindnlp_is_as_the_page_says(tmp_path: Path, package: Callable[..., Path], drops: bool) -> None:
    """The loop is ours; without the four changes, no version on PyPI trains on CPU."""
    packages = package(
        "mindnlp==0.5.1", "transformers==4.57.1", "tokenizers==0.22.1", "huggingface-hub==0.36.0", *OF_MINDNLP
    )
    shutil.copytree(packages / "mindtorch", tmp_path / "mindtorch")  # which comes first: it is beside the script
    generator, operators = tmp_path / "mindtorch/_C/__init__.py", tmp_path / "mindtorch/_apis/cpu.py"
    # MindSpore 2.10 has the operator under another name, and it takes tensors only.
    change(generator, "operations._inner_ops import Generator", "auto_generate.gen_ops_prim import Generator")
    change(generator, "self._offset, step,)", "self._offset, mindspore.Tensor(step),)")
    # No optimizer of 0.5.1 has all of its operators on CPU; this one is that of 7dd3e35.
    assert "raw_sgd" not in operators.read_text()
    with operators.open("a") as file:
        file.write(
            "\n\ndef raw_sgd(param, grad, lr, dampening, weight_decay, nesterov, accum, momentum, stat):\n"
            "    return legacy.sgd(param, grad, lr, accum, momentum, stat, dampening, weight_decay, nesterov)\n"
        )
    # zero_grad() asks for a module that mindtorch does not have; 7dd3e35 does not ask.
    profiled = "with mindtorch.autograd.profiler.record_function(self._zero_grad_profile_name):"
    change(tmp_path / "mindtorch/optim/optimizer.py", profiled, "if True:")
    shutil.copy(PATCHES / "mindnlp_loop.py", tmp_path)
    if not drops:
        rates = "hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0"
        change(tmp_path / "mindnlp_loop.py", "intermediate_size=32)", f"intermediate_size=32, {rates})")
    report = doctor(tmp_path, packages, "mindnlp_loop.py", steps=14)
    if drops:
        assert report["diagnosis"]["code"] == "random-operator", report
        assert report["diagnosis"]["where"] == "operator Dropout"
    else:
        assert report["exact"], report


def test_mindaudio_is_as_the_page_says(tmp_path: Path, package: Callable[..., Path]) -> None:
    import yaml
    from scipy.io import wavfile

    packages = package("mindaudio==0.3.0", *OF_MINDAUDIO)
    theirs, example = Path(__file__).parent / "mindaudio", tmp_path / "examples/deepspeech2"
    shutil.copytree(packages / "mindaudio", example / "mindaudio")  # which comes first: it is beside the script
    for name in ("train.py", "dataset.py"):
        shutil.copy(theirs / name, example)
    apply("mindaudio.patch", tmp_path)
    shutil.copy(theirs / "train_one_step.py", example / "mindaudio/utils")
    # CPU has no NPUGetFloatStatusV2, which the check for overflows calls: without it, nothing ever overflows.
    cell, check = example / "mindaudio/utils/train_one_step.py", "self.get_overflow_status(status, grads)"
    change(cell, check, "ms.Tensor(False)")
    options = yaml.safe_load((theirs / "deepspeech2.yaml").read_text())
    options["TrainingConfig"].update(epochs=3, batch_size=1, train_manifest="manifest.json")
    options["SpectConfig"]["sample_rate"] = 4000
    options["ModelConfig"].update(hidden_size=16, hidden_layers=1)
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(options))
    rng = np.random.default_rng(0)
    for number in range(4):
        # As long as the padded input: CTCLoss leaves the gradient behind a recording's end as memory was.
        noise = rng.integers(-3000, 3000, 50_000).astype(np.int16)
        wavfile.write(tmp_path / f"{number}.wav", 4000, noise)
        (tmp_path / f"{number}.txt").write_text("NOISE")
    samples = [{"wav_path": f"{number}.wav", "transcript_path": f"{number}.txt"} for number in range(4)]
    (tmp_path / "manifest.json").write_text(json.dumps({"root_path": str(tmp_path), "samples": samples}))
    command = "examples/deepspeech2/train.py --config tiny.yaml --device_target CPU --mode 1"
    assert doctor(tmp_path, packages, *command.split(), steps=8)["exact"]


def test_mindocr_is_as_the_page_says(tmp_path: Path, package: Callable[..., Path]) -> None:
    """With accumulation over two batches and a moving average of the weights."""
    import yaml
    from PIL import Image

    packages = package("mindocr==0.5.0", *OF_MINDOCR)
    theirs = Path(__file__).parent / "mindocr"
    shutil.copytree(packages / "mindocr", tmp_path / "mindocr")  # which comes first: the script puts it there
    shutil.copytree(theirs / "tools", tmp_path / "tools")
    apply("mindocr.patch", tmp_path)
    # The layers of ABINet import what MindSpore 2.10 no longer has; DBNet does not use them.
    (tmp_path / "mindocr/models/utils/abinet_layers.py").write_text(
        "from mindspore.nn import Cell\n"
        "ABINetBlock = PositionalEncoding = PositionAttention = TransformerEncoder = TransformerDecoder = Cell\n"
        "_default_tfmer_cfg = CharsetMapper = onehot = None\n"
    )
    options = yaml.safe_load((theirs / "db_r18_icdar15.yaml").read_text())
    options["system"].update(mode=1, log_interval=1, val_while_train=False)
    options["model"]["backbone"]["pretrained"] = False
    options["scheduler"].update(num_epochs=3, warmup_epochs=1)
    train = options["train"]
    train.update(dataset_sink_mode=False, ema=True, gradient_accumulation_steps=2)
    train["dataset"].update(dataset_root=".", data_dir="images", label_file="labels.txt")
    train["loader"].update(batch_size=2, num_workers=1)
    for step in train["dataset"]["transform_pipeline"]:
        if "RandomCropWithBBox" in step:
            step["RandomCropWithBBox"]["crop_size"] = [64, 64]
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(options))
    rng = np.random.default_rng(0)
    (tmp_path / "images").mkdir()
    text = [{"transcription": "A", "points": [[10, 10], [70, 10], [70, 60], [10, 60]]}]
    with (tmp_path / "labels.txt").open("w") as labels:
        for number in range(16):
            Image.fromarray(rng.integers(0, 255, (80, 80, 3), dtype=np.uint8)).save(tmp_path / f"images/{number}.png")
            labels.write(f"{number}.png\t{json.dumps(text)}\n")
    assert doctor(tmp_path, packages, "tools/train.py", "--config", "tiny.yaml", steps=18)["exact"]
