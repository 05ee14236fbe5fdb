# truth: refused
# class: attribute
# head: accumulating_6_graph
# A function asks an object how many micro-steps an update takes; the loop changes it once, and a start asks for the first value.

class Plan:
    def __init__(self):
        self.micro_steps = 2


plan, loss = Plan(), Loss(Net())
cell = ck.AccumulationTrainCell(loss, nn.Adam(loss.trainable_params(), 1e-2), lambda updates: plan.micro_steps).set_train()
run = ck.loop(ROOT, slices().batch(6), epochs=EPOCHS, train=cell, **SAVE)
for x, y in run:
    number = run.step
    if number == 5:
        plan.micro_steps = 4
    cell(x, y)
