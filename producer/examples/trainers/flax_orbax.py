"""Flax and Orbax: the training does not know evalq, and `evalq scan` finds what it saves.

    evalq up -c flax_orbax.yaml -- \\
        sh -c 'python flax_orbax.py; evalq scan out/orbax --run flax --suite eval'
"""

import jax
import jax.numpy as jnp
import optax
import orbax.checkpoint as ocp
from etils import epath
from flax import nnx

inputs = jax.random.normal(jax.random.key(1), (2000, 4))
targets = jnp.sin(inputs.sum(1, keepdims=True))


class Net(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(4, 32, rngs=rngs)
        self.last = nnx.Linear(32, 1, rngs=rngs)

    def __call__(self, x):
        return self.last(nnx.relu(self.first(x)))


graph, start = nnx.split(Net(nnx.Rngs(0)))


def loss(state, x, y):
    return jnp.mean((nnx.merge(graph, state)(x) - y) ** 2)


compiled = jax.jit(loss)  # It is compiled for the first checkpoint and used for all others.
restorer = ocp.StandardCheckpointer()


def evaluate(checkpoint):
    """Runs in the workers, which import this file once."""
    state = restorer.restore(epath.Path(checkpoint.path) / "params", start)
    return {"mse": float(compiled(state, inputs[1000:], targets[1000:])), "n": 1000}


def train():
    options = ocp.CheckpointManagerOptions(save_interval_steps=100)
    manager = ocp.CheckpointManager(epath.Path("out/orbax").absolute(), options=options)
    adam = optax.adam(0.01)
    state, moments = start, adam.init(start)
    newest = manager.latest_step()
    if newest is not None:
        parts = ocp.args.Composite(
            params=ocp.args.StandardRestore(state), adam=ocp.args.StandardRestore(moments)
        )
        saved = manager.restore(newest, args=parts)
        state, moments = saved.params, saved.adam

    @jax.jit
    def update(state, moments):
        gradients = jax.grad(loss)(state, inputs[:1000], targets[:1000])
        changes, moments = adam.update(gradients, moments)
        return optax.apply_updates(state, changes), moments

    for step in range((newest or 0) + 1, 501):
        state, moments = update(state, moments)
        parts = ocp.args.Composite(
            params=ocp.args.StandardSave(state), adam=ocp.args.StandardSave(moments)
        )
        manager.save(step, args=parts)  # In the background.
    manager.wait_until_finished()


if __name__ == "__main__":
    train()
