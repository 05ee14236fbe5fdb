"""Runs the live side of a run: decides when to save, writes in threads, agrees across ranks and ends preempted jobs.

`manager` has the options and the verbs, `setup` what they make, and `run` does them: it takes the state when
`due_saves` says so; `background` writes it; `results` reports failures to training; `final_save` ends the run.
`opening` begins a run, and `batches` numbers the batches of a loop. Beside it stand `preemption`, `mirroring`,
`recording` and `process`. No module here depends on a framework; `ckptkit.mindspore` does.
"""
