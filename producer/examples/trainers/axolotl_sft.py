"""What the workers need to evaluate as Axolotl does; `axolotl train` makes the training.

    python tiny_model.py
    evalq up -c axolotl_sft.yaml -- axolotl train axolotl_config.yaml
"""


def make_trainer():
    from axolotl.cli.config import load_cfg
    from axolotl.common.datasets import load_datasets
    from axolotl.train import setup_model_and_trainer

    cfg = load_cfg("axolotl_config.yaml")
    trainer, *_ = setup_model_and_trainer(cfg, load_datasets(cfg=cfg))
    return trainer
