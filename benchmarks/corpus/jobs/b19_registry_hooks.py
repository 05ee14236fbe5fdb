# truth: differs
# class: global
# head: regression_8_train_step



HOOKS = collections.OrderedDict()


def register(name):
    def deco(fn):
        HOOKS[name] = fn
        return fn

    return deco


@register("anneal")
def anneal(ctx):
    ctx["w"] = ctx.get("w", 1.0) * 0.9


@register("floor")
def floor(ctx):
    ctx["w"] = max(ctx["w"], 0.2)


ctx = {}
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        for h in HOOKS.values():
            h(ctx)
        train_step(x, y, ctx["w"])
        manager.step(state)
    manager.save_final(state)
os._exit(0)
