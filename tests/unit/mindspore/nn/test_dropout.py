"""`ckptkit.nn.Dropout`: its masks, their statistics, and what they depend on."""

import copy

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn
from support.training import Mlp, begin_process, both_modes

import ckptkit as ck
from ckptkit.mindspore.nn.dropout import _key
from ckptkit.nn import Dropout

ONES = np.ones((50, 40), np.float32)


def finalizer(bits):
    bits = (bits ^ bits >> np.uint32(16)) * np.uint32(0x85EBCA6B)
    bits = (bits ^ bits >> np.uint32(13)) * np.uint32(0xC2B2AE35)
    return bits ^ bits >> np.uint32(16)


def expected_mask(key, step, count, p):
    """The definition once more, with NumPy's unsigned numbers."""
    with np.errstate(over="ignore"):
        golden = np.uint32(0x9E3779B9)
        before = finalizer(np.uint32(key & 0xFFFFFFFF) ^ np.uint32(step) * golden)
        within = finalizer(before + golden)
        bits = np.arange(count, dtype=np.uint32) ^ before
        bits = (bits ^ bits >> np.uint32(16)) * np.uint32(0x85EBCA6B) ^ within
        bits = (bits ^ bits >> np.uint32(13)) * np.uint32(0xC2B2AE35)
    return bits.view(np.int32) >= round(p * 2**32) - 2**31


def masks(dropout, calls, x=ONES):
    dropout.set_train()
    return [dropout(ms.Tensor(x)).asnumpy() != 0 for _ in range(calls)]


def test_seeds_mean_the_same_mask_in_every_version():
    """Recorded: a release that drew others would train something else from the same seed."""
    assert (_key(7, 3), _key(2**40 + 5, 0)) == (-406303585, -640078843)


@both_modes
def test_masks_are_the_documented_function_in_both_modes(mode):
    begin_process(mode=mode)
    dropout = Dropout(0.3, seed=2**40 + 5, layer=3)
    for step, mask in enumerate(masks(dropout, 4)):
        assert np.array_equal(mask.reshape(-1), expected_mask(_key(2**40 + 5, 3), step, ONES.size, 0.3))
    assert int(dropout.step.asnumpy()) == 4

    def total(x):
        return (dropout(x) * 3.0).sum()

    value, gradient = ms.value_and_grad(total)(ms.Tensor(ONES))
    kept = gradient.asnumpy() != 0
    np.testing.assert_allclose(gradient.asnumpy()[kept], 3 / 0.7, rtol=1e-6)
    np.testing.assert_allclose(value.asnumpy(), kept.sum() * 3 / 0.7, rtol=1e-4)


def test_layers_and_deep_copies_draw_different_masks():
    layers = [*nn.CellList([Dropout(0.5), Dropout(0.5)])]
    layers.append(copy.deepcopy(layers[0]))
    assert layers[2].key.name == layers[0].key.name, "by which it is stored"
    assert len({masks(layer, 1)[0].tobytes() for layer in layers}) == 3


def test_nothing_happens_in_evaluation_or_with_p_zero():
    dropout, never = Dropout(0.5).set_train(False), Dropout(0).set_train()
    for layer in (dropout, never):
        assert np.array_equal(layer(ms.Tensor(ONES)).asnumpy(), ONES)
        assert int(layer.step.asnumpy()) == 0


def test_values_and_dtype_are_those_of_dropout():
    got = Dropout(0.75).set_train()(ms.Tensor(ONES.astype(np.float16)))
    assert (got.dtype, set(np.unique(got.asnumpy()))) == (ms.float16, {0, 4})


def test_other_probabilities_and_seeds_are_refused():
    for p in (1.0, -0.1, float("nan"), True, "0.5"):
        with pytest.raises(ValueError, match=r"p must be a number in \[0, 1\)"):
            Dropout(p)
    for wrong in ({"seed": 0.5}, {"seed": None}, {"layer": "1"}, {"layer": True}):
        with pytest.raises(TypeError, match=f"{next(iter(wrong))} must be an int"):
            Dropout(0.5, **wrong)


class Dropping(Mlp):
    def __init__(self):
        super().__init__()
        self.drop = Dropout(0.4)

    def logits(self, x):
        return self.out(self.drop(self.norm(self.hidden(x))))


def test_masks_go_on_whatever_was_made_before(root):
    def build():
        network = Dropping()
        cell = ck.AccumulationTrainCell(network, nn.Momentum(network.trainable_params(), 0.1, 0.9), 3)
        return network.drop, ck.StateManager(cell)

    given, state = build()
    masks(given, 2)
    with ck.CheckpointManager(root) as manager:
        manager.restore(state)
        manager.save(state)
    Dropout(0.5)  # a layer more than the first process had made
    fresh, again = build()
    assert int(fresh.key.asnumpy()) != int(given.key.asnumpy())
    ck.CheckpointManager(root).restore(again)
    assert np.array_equal(masks(given, 3), masks(fresh, 3))
