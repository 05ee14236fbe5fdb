# truth: exact
# class: callback
# head: regression_8_dataset

optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)


class Unfreeze(ms.Callback):
    def on_train_epoch_begin(self, rc):
        p = rc.original_args()
        first = net[0]
        for q in first.get_parameters():
            q.requires_grad = p.cur_epoch_num > 1


model = ms.Model(net, loss_fn, optimizer)
ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, data, callbacks=[Unfreeze()])
os._exit(0)
