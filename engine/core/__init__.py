"""Every memory decision of the engine, in plain Python without tensors or a clock."""
