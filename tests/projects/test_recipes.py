"""The projects of docs/projects.md: their packages train with the lines of the page, and the doctor says what it says.

Each test installs the named version of a package with pip, and lets `ckptkit doctor` kill, resume and compare a script
of examples/projects, which trains the package's model with the package's data, loss and step. Needs PyPI.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from docs.doctor.test_doctor import doctor
from docs.documents import PROJECT

import ckptkit

pytestmark = [pytest.mark.projects, pytest.mark.timeout(3600)]

OF_MINDFORMERS = (  # what it imports, even where a training does not use it
    *("mindpet==1.0.4", "sentencepiece", "tiktoken", "jieba", "nltk==3.9.1", "rouge-chinese", "deprecated", "wrapt"),
    "tensorboardX",
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
    *("addict", "cloudpickle", "contourpy", "cycler", "filelock", "fonttools", "huggingface-hub==0.36.0", "joblib"),
    *("kiwisolver", "lmdb", "matplotlib==3.10.8", "opencv-python-headless==4.11.0.86", "packaging", "pyclipper"),
    *("pycocotools", "pyparsing", "python-dateutil", "PyYAML", "rapidfuzz", "requests", "scikit-learn", "seqeval"),
    *("sentencepiece", "shapely<3", "six", "threadpoolctl", "tqdm"),
)
SCRIPTS = PROJECT / "examples/projects"
PAGE = (PROJECT / "docs/projects.md").read_text()


def lines_of_the_page(project: str) -> list[str]:
    """The lines that the page adds to a project."""
    block = re.search(rf"^## {project}\n.*?^```text\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert block is not None
    return block[1].splitlines()


def change(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert text.count(before) == 1, path
    path.write_text(text.replace(before, after))


def examined(
    folder: Path, packages: Path, script: str, *arguments: str, steps: int, **environment: str
) -> tuple[int, dict[str, Any], str]:
    """Exit code, report and words of the doctor on a script in ``folder``."""
    paths = os.pathsep.join([str(packages), str(Path(ckptkit.__file__).parents[1])])
    options = ("--steps", str(steps), "--kills", "3")
    found = doctor(folder, str(folder / script), *options, arguments=arguments, PYTHONPATH=paths, **environment)
    print(*found)  # `pytest -rP` shows it
    return found


def reported(folder: Path, packages: Path, *command: str, steps: int, **environment: str) -> dict[str, Any]:
    _, report, said = examined(folder, packages, *command, steps=steps, **environment)
    assert report, said[-5000:]
    return report


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a folder for PYTHONPATH with the packages; it is kept if ``CKPTKIT_PROJECTS`` names where."""
    kept = os.environ.get("CKPTKIT_PROJECTS")
    home = Path(kept).absolute() if kept else tmp_path_factory.mktemp("projects")

    def install(*requirements: str) -> Path:
        digest = hashlib.sha256(" ".join(requirements).encode()).hexdigest()[:8]
        folder = home / f"{requirements[0]}-{digest}"
        if not (folder / "complete").exists():
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target"]
            subprocess.run([*pip, str(folder), *requirements], check=True, capture_output=True, text=True)
            (folder / "complete").touch()
        return folder

    return install


@pytest.mark.parametrize("project", ["mindcv", "mindyolo", "mindaudio", "mindocr", "mindnlp", "mindformers", "mindone"])
def test_scripts_have_the_lines_of_the_page(project: str) -> None:
    """As many as its table says; mindyolo's trainer gets them from the test."""
    lines = lines_of_the_page(project)
    row = re.search(rf"^\| \[{project}\]\(.*\) \| .* \| (\d+) \|", PAGE, flags=re.MULTILINE)
    assert row is not None
    assert len(lines) == int(row[1])
    if project != "mindyolo":
        [script] = (path for path in SCRIPTS.glob(f"{project}_*.py") if path.stem != "mindformers_callback")
        assert {line.strip() for line in lines} <= {line.strip() for line in script.read_text().splitlines()}


@pytest.mark.parametrize("replaces", [False, True])
def test_mindcv_is_as_the_page_says(tmp_path: Path, package: Callable[..., Path], replaces: bool) -> None:
    packages = package("mindcv==0.3.0", "PyYAML", "tqdm")
    shutil.copy(SCRIPTS / "mindcv_train.py", tmp_path)
    if not replaces:
        change(tmp_path / "mindcv_train.py", "    ck.nn.replace_dropout(network)\n", "")
    report = reported(tmp_path, packages, "mindcv_train.py", steps=16)
    if replaces:
        assert report["exact"], report
    else:
        assert report["diagnosis"]["code"] == "random-operator", report
        assert "network._backbone.classifier.0 (Dropout)" in report["diagnosis"]["where"]


@pytest.mark.parametrize("assigns", [False, True])
def test_mindyolo_is_as_the_page_says(tmp_path: Path, package: Callable[..., Path], assigns: bool) -> None:
    packages = package("mindyolo==0.5.0", "opencv-python-headless==4.11.0.86", "PyYAML")
    shutil.copytree(packages / "mindyolo", tmp_path / "mindyolo")  # which comes first: it is beside the script
    change(tmp_path / "mindyolo/models/losses/yolov8_loss.py", ".max(-2)", ".max(axis=-2)")  # or MindSpore 2.10 stops
    trainer = tmp_path / "mindyolo/utils/trainer_factory.py"
    imported, *made, loop = lines_of_the_page("mindyolo")
    trainer.write_text(f"{imported}\n{trainer.read_text()}")
    before = re.search(r"^( +)loader = .*\n", trainer.read_text(), flags=re.MULTILINE)
    assert before is not None
    change(trainer, before[0], "".join(f"{before[1]}{line}\n" for line in made))
    change(trainer, "enumerate(loader)", loop)
    if assigns:
        momentum = r"(self\.optimizer\.momentum) = (.*)"
        trainer.write_text(re.sub(momentum, r"ops.assign(\1, \2)", trainer.read_text()))
    shutil.copy(SCRIPTS / "mindyolo_train.py", tmp_path)
    if assigns:
        assert reported(tmp_path, packages, "mindyolo_train.py", steps=13)["exact"]
    else:
        code, report, said = examined(tmp_path, packages, "mindyolo_train.py", steps=13)
        assert (code, report) == (1, {}), said[-5000:]
        assert "life-001 ended with exit code 1 after 3 micro-steps" in said
        assert "momentum got new memory after the first update" in said


@pytest.mark.parametrize("accumulation", ["1", "2"])
def test_mindone_is_as_the_page_says(tmp_path: Path, package: Callable[..., Path], accumulation: str) -> None:
    """Its Trainer has a loop of its own; with an accumulation of 2, lives resume in mid-cycle."""
    packages = package(
        "mindone==0.5.0", "transformers==4.57.1", "tokenizers==0.22.1", "huggingface-hub==0.36.0", *OF_MINDONE
    )
    shutil.copy(SCRIPTS / "mindone_train.py", tmp_path)
    assert reported(tmp_path, packages, "mindone_train.py", accumulation, steps=14)["exact"]


@pytest.mark.parametrize("way", ["script", "script that replaces", "YAML file that replaces"])
def test_mindformers_is_as_the_page_says(tmp_path: Path, package: Callable[..., Path], way: str) -> None:
    """Both ways: a line in the script, and the callback named in the YAML file without it."""
    import yaml

    packages = package("mindformers==1.9.0", *OF_MINDFORMERS)
    for name in ("mindformers", "configs"):  # the copy comes first: it is beside the script
        shutil.copytree(packages / name, tmp_path / name)
    # CPU has no NPUGetFloatStatusV2, which the check for overflows calls: without it, nothing ever overflows.
    wrapper, check = tmp_path / "mindformers/wrapper/wrapper.py", "get_overflow_status(status, grads)"
    change(wrapper, f"cond = self.{check}\n        overflow", "cond = Tensor(False)\n        overflow")
    shutil.copy(SCRIPTS / "mindformers_train.py", tmp_path)
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
    report = reported(tmp_path, packages, "mindformers_train.py", steps=18, REGISTER_PATH=str(SCRIPTS))
    if way == "script":
        assert report["diagnosis"]["code"] == "random-operator", report
        assert "attention_dropout (nn.Dropout)" in report["diagnosis"]["where"]
    else:
        assert report["exact"], report


@pytest.mark.parametrize("drops", [True, False])
def test_mindnlp_is_as_the_page_says(tmp_path: Path, package: Callable[..., Path], drops: bool) -> None:
    """Without the two changes, it does not run with MindSpore 2.10."""
    packages = package(
        "mindnlp==0.5.1", "transformers==4.57.1", "tokenizers==0.22.1", "huggingface-hub==0.36.0", *OF_MINDNLP
    )
    shutil.copytree(packages / "mindtorch", tmp_path / "mindtorch")  # which comes first: it is beside the script
    generator = tmp_path / "mindtorch/_C/__init__.py"
    # MindSpore 2.10 has the operator under another name, and it takes tensors only.
    change(generator, "operations._inner_ops import Generator", "auto_generate.gen_ops_prim import Generator")
    change(generator, "self._offset, step,)", "self._offset, mindspore.Tensor(step),)")
    shutil.copy(SCRIPTS / "mindnlp_loop.py", tmp_path)
    if not drops:
        rates = "hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0"
        change(tmp_path / "mindnlp_loop.py", "intermediate_size=32)", f"intermediate_size=32, {rates})")
    report = reported(tmp_path, packages, "mindnlp_loop.py", steps=14)
    if drops:
        assert report["diagnosis"]["code"] == "random-operator", report
        assert report["diagnosis"]["where"] == "operator Dropout"
    else:
        assert report["exact"], report


def test_mindaudio_is_as_the_page_says(tmp_path: Path, package: Callable[..., Path]) -> None:
    packages = package("mindaudio==0.3.0", *OF_MINDAUDIO)
    shutil.copy(SCRIPTS / "mindaudio_train.py", tmp_path)
    assert reported(tmp_path, packages, "mindaudio_train.py", steps=8)["exact"]


def test_mindocr_is_as_the_page_says(tmp_path: Path, package: Callable[..., Path]) -> None:
    packages = package("mindocr==0.5.0", *OF_MINDOCR)
    shutil.copytree(packages / "mindocr", tmp_path / "mindocr")  # which comes first: it is beside the script
    # The layers of ABINet import what MindSpore 2.10 no longer has; DBNet does not use them.
    (tmp_path / "mindocr/models/utils/abinet_layers.py").write_text(
        "from mindspore.nn import Cell\n"
        "ABINetBlock = PositionalEncoding = PositionAttention = TransformerEncoder = TransformerDecoder = Cell\n"
        "_default_tfmer_cfg = CharsetMapper = onehot = None\n"
    )
    shutil.copy(SCRIPTS / "mindocr_train.py", tmp_path)
    assert reported(tmp_path, packages, "mindocr_train.py", steps=18)["exact"]
