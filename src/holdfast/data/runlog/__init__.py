"""hold.log: metrics and arrays from every worker of a training, in one run.hold."""
