"""Helper programs of evalq-logger. Each forwards results to one tracker with its own SDK."""
