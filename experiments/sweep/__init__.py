"""Sweeps: many settings of one study, run in any order on any machine, kept whole, resumed after any end."""
