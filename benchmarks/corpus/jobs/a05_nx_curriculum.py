# truth: differs
# class: variable
# head: regression_8_grad_fn



def train_step(x, y, w=1.0):
    loss, grads = grad_fn(x, y, w)
    optimizer(grads)
    return loss


import networkx as nx

G = nx.path_graph(8)
nx.set_node_attributes(G, 1.0, "difficulty")
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for i, (x, y) in enumerate(batches, point.batches_delivered):
        k = i % 8
        loss = train_step(x, y, G.nodes[k]["difficulty"])
        G.nodes[k]["difficulty"] = 0.5 * G.nodes[k]["difficulty"] + 0.5 * min(float(loss), 2.0)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
