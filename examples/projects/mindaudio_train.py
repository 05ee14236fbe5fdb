"""Trains a tiny DeepSpeech2 on noise with mindaudio's spectrograms, sampler, loss, schedule and train cell."""

from types import SimpleNamespace

import mindaudio
import mindspore as ms
import numpy as np
from mindaudio.loss.ctc_loss import NetWithCTCLoss
from mindaudio.models.deepspeech2 import DeepSpeechModel
from mindaudio.scheduler.scheduler_factory import step_lr
from mindaudio.utils.distributed import DistributedSampler
from mindaudio.utils.train_one_step import TrainOneStepWithLossScaleCell
from mindspore import nn
from mindspore.dataset import GeneratorDataset

import ckptkit as ck

EPOCHS, RECORDINGS, LENGTH, WORD = 3, 4, 200, 5
RATE, WINDOW = 4000, 80
LETTERS = "ABCDEFG_"  # the last stands for none


class Noise:
    """Item i is a random cut of the spectrogram of a recording of noise, and what is said in it."""

    def __init__(self):
        rng = np.random.default_rng(1)
        noise = rng.normal(size=(RECORDINGS, RATE * 4)).astype(np.float32)
        spectra = [mindaudio.stft(row, n_fft=WINDOW, win_length=WINDOW, hop_length=WINDOW // 2) for row in noise]
        self.spectra = [np.log1p(mindaudio.magphase(spectrum, power=1.0, iscomplex=True)[0]) for spectrum in spectra]
        self.words = rng.integers(0, len(LETTERS) - 1, (RECORDINGS, WORD)).astype(np.int32)

    def __len__(self):
        return RECORDINGS

    def __getitem__(self, index):
        first = np.random.randint(self.spectra[index].shape[1] - LENGTH)
        cut = self.spectra[index][None, None, :, first : first + LENGTH].astype(np.float32)
        # On CPU, CTCLoss leaves the gradient behind a recording's end as memory was, so each fills its input.
        filled = np.array([LENGTH], np.float32)
        return cut, filled, np.array([[0, place] for place in range(WORD)]), self.words[index]


class Step(TrainOneStepWithLossScaleCell):
    """Checks no overflow: the operators for that are not on CPU."""

    def start_overflow_check(self, loss, scale):
        return False, scale

    def get_overflow_status(self, status, gradients):
        return ms.Tensor(False)


ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(1)
rows = Noise()
batches = GeneratorDataset(
    rows, ["inputs", "input_length", "target_indices", "label_values"], sampler=DistributedSampler(rows, 0, 1)
)
recording = SimpleNamespace(sample_rate=RATE, window_size=WINDOW / RATE)
network = DeepSpeechModel(1, LETTERS, rnn_hidden_size=16, nb_layers=1, audio_conf=recording)
optimizer = nn.Adam(network.trainable_params(), step_lr(1e-3, EPOCHS, RECORDINGS), loss_scale=1.0)
cell = Step(NetWithCTCLoss(network), optimizer, ms.Tensor(128.0))
ck.CheckpointCallback("runs/deepspeech2").attach()
ms.Model(cell).train(EPOCHS, batches, dataset_sink_mode=False)
