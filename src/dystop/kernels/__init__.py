"""Compiled versions of NumPy functions, for planning with many workers.

Every public function here has a reference of the same name and signature in the module that its
docstring names; `dystop.acceleration` chooses between the two. No other module imports this
package: without it everything runs to the same decisions, only slower.
"""
