"""evalq inside training frameworks: a guest that never waits, never raises, and is absent on all ranks but one.

    from evalq.integrations.transformers import EvalqCallback
    from evalq.integrations.lightning import EvalqCallback, EvalqLogger

Nothing is imported here: each module needs its own framework.
"""
