"""What runs a batch on tensors."""
