"""Rankings: a policy that shows lists, and how it is learned from a log of lists."""
