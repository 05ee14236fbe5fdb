# truth: differs
# class: random
# head: accumulating_6_pynative
# A dropout that is in no cell of the checkpoint is applied to inputs.

noise = nn.SequentialCell(nn.Dropout(p=0.3), nn.ReLU()).set_train()
net = Net().set_train()
optimizer = nn.Adam(net.trainable_params(), 1e-2)
gradients_of = ms.value_and_grad(lambda x, y: ops.cross_entropy(net(noise(x)), y), None, optimizer.parameters)
for x, y in ck.loop(ROOT, slices().batch(6), epochs=EPOCHS, train=[net, optimizer], **SAVE):
    optimizer(gradients_of(x, y)[1])
