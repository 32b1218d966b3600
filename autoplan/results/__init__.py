"""The experiment database: what was planned, what was predicted, what was measured."""
