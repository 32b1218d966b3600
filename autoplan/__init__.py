"""autoplan: plan distributed training, predict it, search for the fastest, prove it by running it."""
