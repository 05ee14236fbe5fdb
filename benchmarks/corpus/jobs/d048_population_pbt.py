# truth: differs
# class: variable
# head: regression_8_make_batches
# hyperparameters and scores of a population of two models are in a list of dicts that exploit-and-explore changes



def member(i, lr):
    cell = nn.SequentialCell(nn.Dense(8, 8), nn.Tanh(), nn.Dense(8, 1))
    cell.update_parameters_name(f"member{i}.")
    params = cell.trainable_params()
    grad_fn = ms.value_and_grad(lambda x, y: ((cell(x) - y) ** 2).mean(), None, params)
    return {"cell": cell, "params": params, "grad": grad_fn, "lr": lr, "score": 0.0}


def train_member(m, x, y):
    loss, grads = m["grad"](x, y)
    for p, g in zip(m["params"], grads):
        ops.assign(p, p - m["lr"] * g)
    m["score"] = 0.8 * m["score"] - 0.2 * float(loss.asnumpy())


def exploit_and_explore(population, step):
    ranked = sorted(population, key=lambda m: m["score"], reverse=True)
    winner, loser = ranked[0], ranked[-1]
    for source, target in zip(winner["params"], loser["params"]):
        ops.assign(target, source.value().copy())
    loser["lr"] = winner["lr"] * (1.3 if step % 8 else 0.7)


population = [member(i, lr) for i, lr in enumerate((0.02, 0.08))]
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([m["cell"] for m in population], batches)
    point = manager.restore(state)
    for step, (x, y) in enumerate(batches, point.batches_delivered + 1):
        for m in population:
            train_member(m, x, y)
        if step % 4 == 0:
            exploit_and_explore(population, step)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
