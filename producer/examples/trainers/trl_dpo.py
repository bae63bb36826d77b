"""TRL's DPOTrainer, evaluated by evalq's workers.

    evalq up -c trl_dpo.yaml -- python trl_dpo.py
"""

import datasets
import trl
from tiny_model import make_model, make_tokenizer


def preferences(first, last):
    rows = [(a, b) for a in range(first, last) for b in range(10)]
    return datasets.Dataset.from_list(
        [{"prompt": f"{a}+{b}=", "chosen": f"{a + b}", "rejected": "="} for a, b in rows]
    )


def make_trainer(callbacks=None):
    args = trl.DPOConfig(
        output_dir="out/trl-dpo",
        max_steps=30,
        learning_rate=1e-4,
        eval_strategy="steps",
        eval_steps=10,
        save_steps=10,
        load_best_model_at_end=True,
        metric_for_best_model="rewards/accuracies",
        report_to="none",
        bf16=False,
    )
    return trl.DPOTrainer(
        make_model(),
        ref_model=make_model(),
        args=args,
        train_dataset=preferences(0, 50),
        eval_dataset=preferences(50, 60),
        processing_class=make_tokenizer(),
        callbacks=callbacks,
    )


if __name__ == "__main__":
    from evalq.integrations.transformers import EvalqCallback

    trainer = make_trainer(callbacks=[EvalqCallback("dpo")])
    trainer.train()
    for entry in trainer.state.log_history:
        if "eval_loss" in entry:
            accuracy = entry["eval_rewards/accuracies"]
            print(f"step {entry['step']}: eval_loss {entry['eval_loss']:.4f}, accuracy {accuracy}")
    print("best:", trainer.state.best_model_checkpoint)
