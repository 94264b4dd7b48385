"""Every figure of the paper's exact experiments: compute tables, write them as CSV, draw from the tables."""
