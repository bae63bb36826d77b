"""python -m evalq.model_server: generative benchmarks on a model server that stays warm (docs/generation.md).

The worker starts this program once per slot, for an evaluator of the kind model_server. It keeps one server running,
replaces the server's weights in place for each checkpoint, proves them, and runs a harness against the server.
"""
