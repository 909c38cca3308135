"""A study: the command line, the loop over launches, the verdict and the report."""
