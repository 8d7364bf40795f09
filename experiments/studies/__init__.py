"""Studies beyond the paper's figures: one question each, its runs, its claims, a table and a figure."""
