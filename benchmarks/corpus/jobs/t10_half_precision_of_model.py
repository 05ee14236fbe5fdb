# truth: exact
# class: other
# head: accumulating_6_graph
# `amp_level` of the model, with a loss scale that is fixed.

network = Net()
scale = ms.FixedLossScaleManager(128.0, drop_overflow_update=False)
loss_fn = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
optimizer = nn.Adam(network.trainable_params(), 1e-2)
model = ms.Model(network, loss_fn, optimizer, amp_level="O2", loss_scale_manager=scale)
ck.CheckpointCallback(ROOT, **SAVE).train(model, EPOCHS, slices().batch(6))
