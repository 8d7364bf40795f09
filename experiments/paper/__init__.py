"""The paper's figures and the chapter's arithmetic as claims that are measured and judged."""
