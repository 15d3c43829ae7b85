"""The paper's theorems as code: Theorem 1's bound, Theorem 2's gap, and the constants they need."""
