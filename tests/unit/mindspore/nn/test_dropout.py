"""`ckptkit.nn.Dropout`: its masks, their statistics, and what they depend on."""

import copy
import hashlib

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn
from support.training import begin_process, both_modes

import ckptkit as ck
from ckptkit.nn import Dropout

ONES = np.ones((50, 40), np.float32)


def masks(dropout, calls, x=ONES):
    dropout.set_train()
    return [dropout(ms.Tensor(x)).asnumpy() != 0 for _ in range(calls)]


@both_modes
def test_masks_of_a_seed_are_those_of_stored_runs_in_both_modes(mode):
    """Recorded of the documented function: a release that drew others would train something else."""
    begin_process(mode=mode)
    dropout = Dropout(0.3, seed=2**40 + 5, layer=3)
    drawn = b"".join(mask.tobytes() for mask in masks(dropout, 4))
    assert hashlib.sha256(drawn).hexdigest()[:32] == "bdda3180e453817b68dc1fa399785139"
    assert (int(dropout.step.asnumpy()), dropout.step.name) == (4, "step")

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


def test_masks_go_on_whatever_was_made_before(root):
    def build():
        drop = Dropout(0.4)
        return drop, ck.StateManager(drop)

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
