"""The controller of RolloutRun: observe, plan, render, apply, status."""
