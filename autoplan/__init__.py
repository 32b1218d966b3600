"""autoplan: plan distributed training, predict it, search for the best, prove it by running."""
