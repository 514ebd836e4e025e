"""Where a step's metrics go: a file, TensorBoard, Weights and Biases, MLflow. Never imports torch.

A tracker remembers the last step it wrote, where it wrote it: a resumed run goes on with the same
tracker run and repeats nothing.
"""
