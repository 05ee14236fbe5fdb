"""The live side of a run: when to save, in which thread, what the ranks agree on, how a preempted job ends.

A step goes through `manager` to `scheduler`, which takes the state; `background` writes it; `results` tells the
training what failed; `final_save` ends the run. Nothing here knows a framework: that is `ckptkit.mindspore`.
"""
