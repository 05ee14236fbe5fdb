"""Runs the live side of a run: decides when to save, writes in threads, agrees across ranks and ends preempted jobs.

`manager` has the options and the verbs, and `active_run` does them: it passes a step to `scheduler`, which takes the
state; `background` writes it; `results` reports failures to training; `final_save` ends the run. `batches` numbers the
batches of a loop. Beside it stand `preemption`, `mirroring`, `recording` and `process`. No module here depends on a
framework; `ckptkit.mindspore` does.
"""
