# truth: differs
# class: attribute
# head: accumulating_6_pynative
# A backward hook divides gradients by the number of its calls.

class Damped:
    def __init__(self):
        self.calls = 0

    def __call__(self, cell, inputs, outputs):
        self.calls += 1
        return tuple(gradient / self.calls for gradient in inputs)


net = Net()
net.out.register_backward_hook(Damped())
ck.CheckpointCallback(ROOT, **SAVE).train(ms.Model(accumulating(Loss(net))), EPOCHS, slices().batch(6), callbacks=[])
