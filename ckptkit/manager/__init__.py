"""Runs the live side of a run: decides when to save, writes in threads, agrees across ranks and ends preempted jobs.

`manager` has the options and the verbs, and `run` does them: it takes the state when `save_schedule` and `agreement`
say so, `writer` writes it, `mirrors` upload it, `preemption` hears who asks for the end, and `preemption_schedule` says
when it comes. No module here depends on a framework; `ckptkit.mindspore` does.
"""
