"""LLaMA-Factory with evalq's callback, instead of `llamafactory-cli train`.

    python tiny_model.py
    evalq up -c llamafactory_sft.yaml -- python llamafactory_sft.py llamafactory_config.yaml
"""

from llamafactory.train.tuner import run_exp

from evalq.integrations.transformers import EvalqCallback

if __name__ == "__main__":
    run_exp(callbacks=[EvalqCallback("eval")])
