"""Gives MindSpore's different loss scalers one interface for a train cell.

Guarantees: the scale and the scaler's counters are parameters of this cell, under MindSpore's own names, so that
checkpoints hold them. Main thread only.
"""

from __future__ import annotations

from typing import TypeAlias

import mindspore as ms
from mindspore import amp, nn

LossScaler: TypeAlias = amp.LossScaler | nn.Cell  # DynamicLossScaleUpdateCell and FixedLossScaleUpdateCell


class LossScale(nn.Cell):
    """Holds the scale, and adapts it once per cycle.

    Args:
        scaler: `amp.StaticLossScaler`, `amp.DynamicLossScaler` (or another `amp.LossScaler` that keeps its scale in
            ``scale_value``), `nn.DynamicLossScaleUpdateCell` or `nn.FixedLossScaleUpdateCell`.

    Attributes:
        scale: Parameter, float32 (): the factor applied to the loss.

    Raises:
        TypeError: If ``scaler`` is none of these.
    """

    def __init__(self, scaler: LossScaler) -> None:
        super().__init__(auto_prefix=False)
        if isinstance(scaler, amp.LossScaler) and isinstance(getattr(scaler, "scale_value", None), ms.Parameter):
            # The scaler is not a Cell, so MindSpore finds its parameters only as attributes of this one.
            self.scaler = scaler
            self.counters = ms.ParameterTuple([one for one in vars(scaler).values() if isinstance(one, ms.Parameter)])
            self.scale = scaler.scale_value
        elif isinstance(scaler, nn.DynamicLossScaleUpdateCell | nn.FixedLossScaleUpdateCell):
            self.scaler = scaler
            initial = ms.Tensor(float(scaler.get_loss_scale()), ms.float32)
            self.scale = ms.Parameter(initial, name="scale_sense", requires_grad=False)
        else:
            raise TypeError(
                "loss_scaler must be an amp.StaticLossScaler, amp.DynamicLossScaler, nn.DynamicLossScaleUpdateCell or "
                f"nn.FixedLossScaleUpdateCell, got {type(scaler).__name__}"
            )

    def described(self) -> str:
        """Return the scaler's type and those of its options that no parameter holds."""
        options = {name: getattr(self.scaler, name, None) for name in ("scale_factor", "scale_window")}
        said = [
            f"{name}={one}" for name, one in options.items() if one is not None and not isinstance(one, ms.Parameter)
        ]
        return f"{type(self.scaler).__name__}({', '.join(said)})"

    def adapt(self, *, finite: bool) -> None:
        """Tell the scaler whether the cycle's gradients were finite; it may change the scale."""
        if isinstance(self.scaler, nn.Cell):
            self.scaler(self.scale, ms.Tensor(not finite))
        else:
            self.scaler.adjust(ms.Tensor(finite))
