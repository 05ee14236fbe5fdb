# truth: differs
# class: variable
# The experiment record is an XML tree; the loop asks the last five <step> elements for the trend of the loss.

import hashlib
import os
import xml.etree.ElementTree as ET

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(32)
record = ET.Element("experiment", name="xor")
steps = ET.SubElement(record, "steps")

r = np.random.RandomState(22)
x = r.choice([-1.0, 1.0], (64, 2)).astype(np.float32) + 0.1 * r.randn(64, 2).astype(np.float32)
y = (x[:, :1] * x[:, 1:] > 0).astype(np.float32)
data = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(8)
net = nn.SequentialCell(nn.Dense(2, 8), nn.Tanh(), nn.Dense(8, 1))
opt = nn.Momentum(net.trainable_params(), 0.1, 0.9)
mse = nn.MSELoss()
grad_fn = ms.value_and_grad(lambda a, b: mse(net(a), b), None, opt.parameters)


def trend():
    last = [float(e.get("loss")) for e in steps.findall("step")[-5:]]
    return last[-1] - last[0] if len(last) == 5 else 0.0


run = ck.loop(
    os.environ["ROOT"],
    data,
    epochs=4,
    train=[net, opt],
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait"),
)
for a, b in run:
    number = run.step
    loss, grads = grad_fn(a, b)
    factor = 1.0 - max(-0.5, min(0.5, trend()))
    opt(tuple(g * factor for g in grads))
    ET.SubElement(steps, "step", number=str(number), loss=f"{float(loss):.6f}")
ET.ElementTree(record).write("record.xml")
print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)
