"""TRL's GRPOTrainer, evaluated by evalq's workers.

    evalq up -c trl_grpo.yaml -- python trl_grpo.py
"""

import datasets
import trl
from tiny_model import make_model, make_tokenizer


def reward(completions, **kwargs):
    """The share of digits, which the model can learn in a few steps."""
    return [sum(map(str.isdigit, text)) / max(len(text), 1) for text in completions]


def prompts(first, last):
    return datasets.Dataset.from_list([{"prompt": f"{a}+{a}="} for a in range(first, last)])


def make_trainer(callbacks=None):
    args = trl.GRPOConfig(
        output_dir="out/trl-grpo",
        max_steps=12,
        learning_rate=1e-2,
        num_generations=8,
        max_completion_length=8,
        eval_strategy="steps",
        eval_steps=4,
        save_steps=4,
        load_best_model_at_end=True,
        metric_for_best_model="reward",
        report_to="none",
        bf16=False,
    )
    return trl.GRPOTrainer(
        make_model(),
        reward_funcs=reward,
        args=args,
        train_dataset=prompts(0, 80),
        eval_dataset=prompts(80, 88),
        processing_class=make_tokenizer(),
        callbacks=callbacks,
    )


if __name__ == "__main__":
    from evalq.integrations.transformers import EvalqCallback

    trainer = make_trainer(callbacks=[EvalqCallback("grpo")])
    trainer.train()
    for entry in trainer.state.log_history:
        if "eval_reward" in entry:
            print(f"step {entry['step']}: eval_reward {entry['eval_reward']:.3f}")
    print("best:", trainer.state.best_model_checkpoint)
