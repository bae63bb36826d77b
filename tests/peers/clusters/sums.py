"""An evaluator: how many tensors the weights have, and the sum of their magnitudes."""


def evaluate(checkpoint):
    weights = [value for value in checkpoint.load().values() if value.is_floating_point()]
    return {"tensors": len(weights), "sum": float(sum(value.double().abs().sum() for value in weights))}
