# truth: differs
# class: callback
# head: regression_8_dataset

optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)
valid = ds.NumpySlicesDataset((X[:16], Y[:16]), ["x", "y"], shuffle=False).batch(8)


class Holder:
    pass


H = Holder()


class Sel(ms.Callback):
    def on_eval_end(self, rc):
        name = "first_score"
        if not hasattr(H, name):
            setattr(H, name, rc.original_args().metrics["mae"])

    def on_train_step_end(self, rc):
        if rc.original_args().cur_step_num % 4 == 0:
            ops.assign(optimizer.learning_rate, Tensor(0.05 * min(1, getattr(H, "first_score", 1.0)), ms.float32))


model = ms.Model(net, loss_fn, optimizer, metrics={"mae"})
ck.CheckpointCallback(ROOT, **SAVE).fit(model, 3, data, valid, callbacks=[Sel()])
os._exit(0)
