"""Records what a training computes, call by call, so that ``ckptkit doctor`` can find where two runs part.

`calls` has what runs on the training thread, `operations` the Python code of a data pipeline, `settings` what makes
runs equal. Nothing here runs in a training that is not examined.
"""
