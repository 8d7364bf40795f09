"""Step times of an engine into a step-time model: what to measure, measuring it, fitting it, how far it is off."""
