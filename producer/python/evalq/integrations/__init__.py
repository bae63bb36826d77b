"""evalq inside training frameworks. It never raises into training, waits only at the end of
training, and submits on rank 0 only.

    from evalq.integrations.transformers import EvalqCallback
    from evalq.integrations.lightning import EvalqCallback, EvalqLogger

This package imports no framework itself; each module imports its own.
"""
