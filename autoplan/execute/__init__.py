"""Real runs: what a framework and a machine make of a model or a plan."""
