"""Secure aggregation: masked sums, and the federated rounds that are made of them."""
