"""Which format for which matrix: by a model of the cost, or by measuring."""
