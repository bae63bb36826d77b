"""The command line of lmms-eval, as far as its server uses it, over tasks that need no framework: for tests."""
