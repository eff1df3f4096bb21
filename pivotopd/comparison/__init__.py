"""Comparison: arms and seeds side by side, from an experiment file to tables, figures and one page."""
