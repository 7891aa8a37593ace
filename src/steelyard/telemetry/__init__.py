"""What nodes tell of themselves: whether they are well, what they are, and which models they serve."""
