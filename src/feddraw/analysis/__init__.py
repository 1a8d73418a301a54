"""What the numbers say: metrics, evaluation, statistics, explanations and figures."""
