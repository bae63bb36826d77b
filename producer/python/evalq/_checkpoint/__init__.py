"""Reads the weights of a checkpoint into Python. Each format has one file; weights.py chooses."""
