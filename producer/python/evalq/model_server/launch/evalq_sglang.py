"""Starts SGLang with the key of $EVALQ_SERVER_KEY as its --api-key. Other users can read a
command line, but not the environment."""

import os
import runpy
import sys

if __name__ == "__main__":
    sys.argv = ["sglang.launch_server", *sys.argv[1:], "--api-key", os.environ["EVALQ_SERVER_KEY"]]
    runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=True)
