"""python -m evalq.model_server: runs generative benchmarks on a model server that stays warm.

The worker starts this program once per slot, for an evaluator of the kind model_server. It keeps
one server running. For each checkpoint it replaces the server's weights in place, proves that the
server has them, and runs a harness against the server. docs/generation.md describes it.
"""
