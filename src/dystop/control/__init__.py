"""The decisions of the paper as pure functions: one equation, one function, its label beside it."""
