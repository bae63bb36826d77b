"""Copies state dicts into shared memory and submits them."""
